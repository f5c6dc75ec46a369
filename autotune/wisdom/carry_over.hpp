// Which schedules are taken by other shapes of the bucket of the shape that a plan was made for.
#pragma once

#include <span>
#include <vector>

#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"
#include "generator/schedule.hpp"

namespace flashjit::autotune {

struct WisdomRecord;

class CarryOver {
 public:
  // From a record, for shapes in the bucket of `shape`.
  CarryOver(const WisdomRecord& record, const Problem& problem, const Shape& shape, const Target& target);
  // From the model alone, which has ranked these schedules for `shape`, best first; at least one.
  CarryOver(std::span<const Schedule> ranked, const Problem& problem, const Shape& shape,
            const Target& target);

  // The record's schedule, or another one of its family that is expected to take less time. What is expected
  // is the analytic model's prediction, times the factor by which it was off where the record timed that
  // schedule. Without a mask, and with another bucket's record, the model's best picks count, too, with the
  // median of these factors. This costs a prediction for each known schedule, 95 at most today (79 others of
  // one family in a record, and 16 predicted): tenths of a microsecond each, but 60 microseconds where a
  // mask's tiles are drawn off a counter.
  [[nodiscard]] const Schedule& schedule_for(const Shape& shape) const;

 private:
  struct Known {
    Schedule schedule;
    double off_by = 1;  // measured / predicted
  };
  void add_timed(const WisdomRecord& record);
  void add_predicted(const Shape& shape);
  [[nodiscard]] double expected_ms(const Known& known, const Shape& shape) const;

  Problem problem_;
  Target target_;
  Shape timed_;
  Known winner_;
  std::vector<Known> others_;
};

}  // namespace flashjit::autotune
