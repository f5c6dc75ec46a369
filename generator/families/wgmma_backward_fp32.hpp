// Family wgmma's backward pass in fp32, where each number is the sum of three bf16 numbers. It has kernels of
// its own, for one tile, of which a schedule's stages and dq may vary.
#pragma once

#include <vector>

#include "generator/recipe.hpp"

namespace flashjit {

// Like those of recipe.hpp without _fp32, which call these.
Legality legal_wgmma_backward_fp32(const Problem& problem, const WgmmaBackwardSchedule& schedule,
                                   const Target& target);
std::vector<Recipe> recipes_wgmma_backward_fp32(const Problem& problem, const WgmmaBackwardSchedule& schedule,
                                                const Target& target);

// Of a tile in the workspace, in bytes (BackwardParams::row_parts, key_parts).
int row_parts_bytes_wgmma_backward_fp32(const Problem& problem);
int key_parts_bytes_wgmma_backward_fp32(const Problem& problem);

}  // namespace flashjit
