// Family mma's forward pass in fp32, where each number is the sum of three bf16 numbers. It is a kernel of
// its own, for which a schedule's tile, warps, lazy and min_ctas may vary.
#pragma once

#include "generator/recipe.hpp"

namespace flashjit {

// Like those of recipe.hpp without _fp32, which call these.
Legality legal_mma_fp32(const Problem& problem, const MmaSchedule& schedule, const Target& target);
Geometry geometry_mma_fp32(const Problem& problem, const MmaSchedule& schedule, const Target& target);
std::vector<Recipe> recipes_mma_fp32(const Problem& problem, const MmaSchedule& schedule,
                                     const Target& target);

}  // namespace flashjit
