// Family mma's forward pass in fp32, where each number is the sum of three bf16 ones: a kernel of its own,
// which reads of a schedule its tile, warps and CTAs.
#pragma once

#include "generator/recipe.hpp"

namespace flashjit {

// As those of recipe.hpp without _fp32, which call them.
Legality legal_mma_fp32(const Problem& problem, const MmaSchedule& schedule, const Target& target);
Geometry geometry_mma_fp32(const Problem& problem, const MmaSchedule& schedule, const Target& target);
std::vector<Recipe> recipes_mma_fp32(const Problem& problem, const MmaSchedule& schedule,
                                     const Target& target);

}  // namespace flashjit
