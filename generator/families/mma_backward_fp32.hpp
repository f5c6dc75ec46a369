// Family mma's backward pass in fp32, where each number is the sum of three bf16 numbers. It has kernels of
// its own, for a few tiles.
#pragma once

#include <vector>

#include "generator/recipe.hpp"

namespace flashjit {

// Like those of recipe.hpp without _fp32, which call these.
Legality legal_mma_backward_fp32(const Problem& problem, const MmaBackwardSchedule& schedule,
                                 const Target& target);
std::vector<Recipe> recipes_mma_backward_fp32(const Problem& problem, const MmaBackwardSchedule& schedule,
                                              const Target& target);

// The kernel before, which finds delta; of family wgmma, too.
Recipe recipe_delta_fp32(const Problem& problem, bool clears_dq, const Target& target);

// Every schedule that is legal for some problem; the first ones are the fastest most often.
std::vector<MmaBackwardSchedule> schedules_mma_backward_fp32();
// Bytes of shared memory of one CTA of the kernel that owns keys.
int shared_bytes_mma_backward_fp32(const Problem& problem, const MmaBackwardSchedule& schedule);

// The kernel that owns query rows, where dQ has a pass of its own: a warp for 16 rows. Shared memory has the
// parts of Q, of dO, of K and of V.
struct MmaBackwardQueries {
  int warps = 0, tile_n = 0;
  int offset_dout = 0, offset_k = 0, offset_v = 0;  // in bytes
  int total = 0;
  [[nodiscard]] int tile_m() const { return 16 * warps; }
};
MmaBackwardQueries queries_mma_backward_fp32(const Problem& problem, const Target& target);

}  // namespace flashjit
