// What family mma's kernels have in common: rows of tiles in shared memory (both passes), and what a forward
// schedule's CTAs leave to a thread.
#pragma once

#include <fmt/format.h>

#include <algorithm>

#include "generator/recipe.hpp"
#include "generator/schedule.hpp"

namespace flashjit {

// Bytes of a row of 16-bit elements, padded to whole 16-element steps of mma
// (templates/parts/mma/shared_tile.cuh).
constexpr int pitch_of(int head_dim) {
  return (head_dim + 15) / 16 * 32;
}

constexpr int kSplitParts = 3;  // bf16 numbers whose sum is one fp32 number (templates/parts/mma/split.cuh)

// Registers that __launch_bounds__ leaves to one thread.
inline int register_limit(const MmaSchedule& schedule, const Target& target) {
  return registers_for(32 * schedule.warps * std::max(1, schedule.min_ctas), target);
}

// Whether a multiprocessor has threads enough for the CTAs that min_ctas asks for.
inline Legality legal_ctas(const MmaSchedule& s, const Target& target) {
  const int ctas = std::max(1, s.min_ctas);
  if (32 * s.warps * ctas <= target.threads_per_sm) return {};
  return {fmt::format("{} CTAs of {} threads are more than the {} threads of a multiprocessor of {}", ctas,
                      32 * s.warps, target.threads_per_sm, target.arch)};
}

// Bytes of L2 for K and V of the heads that run at the same time: on Hopper, 32 of 50 MB were best. 0: heads
// form no sections.
inline int section_bytes(const Problem& problem, const Target& target) {
  return problem.causal ? target.l2_bytes / 3 * 2 : 0;
}

}  // namespace flashjit
