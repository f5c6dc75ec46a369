// What a record says of the shapes of its bucket whose rows fill tiles otherwise than those that were timed.
#pragma once

#include <vector>

#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"
#include "generator/schedule.hpp"

namespace flashjit::autotune {

struct WisdomRecord;

class CarryOver {
 public:
  CarryOver(const WisdomRecord& record, const Problem& problem, const Target& target);

  // The record's schedule; or, where its tiles compute so many more rows past the end of `shape` than of the
  // shape that was timed that another one of the record's family would have won, that one.
  [[nodiscard]] const Schedule& schedule_for(const Shape& shape) const;

 private:
  struct Timed {
    Schedule schedule;
    double milliseconds;
  };
  Shape shape_;  // that was timed
  Timed winner_;
  std::vector<Timed> others_;
};

}  // namespace flashjit::autotune
