// Family wgmma's forward pass in fp32, where each number is the sum of three bf16 numbers. It is a kernel of
// its own, for which a schedule's tile, stages, q_in_regs (2: the first part of Q), lazy, cluster, splits (2:
// two CTAs share out the columns) and ptxas may vary.
#pragma once

#include "generator/recipe.hpp"

namespace flashjit {

// Like those of recipe.hpp without _fp32, which call these.
Legality legal_wgmma_fp32(const Problem& problem, const WgmmaSchedule& schedule, const Target& target);
Geometry geometry_wgmma_fp32(const Problem& problem, const WgmmaSchedule& schedule);
std::vector<Recipe> recipes_wgmma_fp32(const Problem& problem, const WgmmaSchedule& schedule);

}  // namespace flashjit
