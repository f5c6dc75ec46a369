// Which schedule other shapes of a bucket take than the one that a plan was made for.
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
  // By a record, for shapes of the bucket that `shape` is of.
  CarryOver(const WisdomRecord& record, const Problem& problem, const Shape& shape, const Target& target);
  // By the model alone, which ranks these schedules for `shape`, best first; at least one.
  CarryOver(std::span<const Schedule> ranked, const Problem& problem, const Shape& shape,
            const Target& target);

  // The record's schedule, or another one of its family where that is to take less time: as long as the
  // analytic model predicts, times what it was off by where the record timed that schedule. Without a mask,
  // and of another bucket's record, what the model likes best counts, too, as if it were off by as much as it
  // mostly was. Costs a prediction of each schedule that it knows, 80 at most today: tenths of a
  // microsecond each, but 60 where a mask's tiles are drawn off a counter.
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
