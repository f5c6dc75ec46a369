// The backward pass's search space and model, which differ from the forward pass's in all but their use.
#pragma once

#include <cmath>
#include <vector>

#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"
#include "generator/schedule.hpp"

namespace flashjit::autotune {

// Every schedule worth a thought, in the order that breaks ties; legal() has not looked at them.
std::vector<Schedule> backward_space(const Problem& problem, Family family);

// Below this number of queries, only schedules that keep scores in two floats are exact enough for fp32.
inline constexpr int kFewRows = 16;

// Whether these are fp32 gradients of so few queries that errors do not average out over their rows
// (docs/performance/mma-fp32.md).
inline bool has_few_rows(const Problem& problem, const Shape& shape) {
  return problem.pass == Pass::backward && problem.dtype == DType::fp32 && shape.seqlen_q < kFewRows;
}

// Whether there are few rows, and the schedule does not keep scores in two floats.
bool needs_rows(const Problem& problem, const Shape& shape, const Schedule& schedule);

// Whether the space has a schedule with fewer splits that shares out this shape's queries into as many parts.
bool splits_in_vain(const Problem& problem, const Shape& shape, const Schedule& schedule);

// How many times the work of a shape its whole tiles are.
inline double filled_up(const Shape& shape, int tile_m, int tile_n) {
  const auto filled = [](int length, int tile) { return std::ceil(1.0 * length / tile) * tile / length; };
  return filled(shape.seqlen_q, tile_m) * filled(shape.seqlen_k, tile_n);
}

// Milliseconds of all the plan's kernels. For ranking only.
double predict_backward(const Problem& problem, const Shape& shape, const Schedule& schedule,
                        const Target& target);

}  // namespace flashjit::autotune
