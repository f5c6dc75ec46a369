// Records of one problem on one GPU, and whom choose() asks about them.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>

#include "autotune/tuner.hpp"
#include "autotune/wisdom.hpp"

namespace flashjit::test {

using namespace autotune;

inline const Versions kNow{.flashjit = "0.1.0", .templates = "t1"};
inline const Problem kProblem{.dtype = DType::bf16, .head_dim = 128, .causal = true};
inline const Shape kShape{.batch = 4, .heads = 16, .seqlen_q = 4096, .seqlen_k = 4096};
inline const std::string kGpu = "NVIDIA H200";

inline WisdomRecord record(const std::string& schedule, double milliseconds = 1,
                           Tuning effort = Tuning::quick) {
  TuneResult result;
  result.best = parse_schedule(schedule);
  result.best_ms = milliseconds;
  Candidate timed;
  timed.schedule = result.best;
  timed.measured_ms = timed.in_final_ms = milliseconds;
  timed.clock_mhz = 1700;
  result.candidates = {timed};
  return record_of(kProblem, kShape, target_of("sm_90a"), kGpu, result, effort, kNow, {{"driver", "580.1"}});
}

inline std::optional<WisdomChoice> ask(const Wisdom& own, const Wisdom& shipped = {}, Shape shape = kShape,
                                       Problem problem = kProblem, const std::string& gpu = kGpu) {
  return choose(own, shipped, problem, shape, target_of("sm_90a"), gpu, kNow);
}

inline Wisdom with(std::initializer_list<WisdomRecord> records) {
  Wisdom wisdom;
  for (const auto& one : records) wisdom.add(one, kNow);
  return wisdom;
}

inline Shape with_rows(int rows) {
  Shape shape = kShape;
  shape.seqlen_q = shape.seqlen_k = rows;
  return shape;
}

// What the model likes best.
inline std::string favourite(const Problem& problem, const Shape& shape) {
  return to_string(ranked_space(problem, shape, target_of("sm_90a"), "wgmma").front().schedule);
}

}  // namespace flashjit::test
