// What the templates of family wgmma's forward pass do to S's registers: instructions that name each of them.
#pragma once

#include "generator/recipe.hpp"

namespace flashjit::wgmma_forward {

// Fills in the lists of templates/parts/wgmma/score_registers.cuh.
void list_score_registers(Recipe& recipe, const Problem& problem, const WgmmaSchedule& schedule);

}  // namespace flashjit::wgmma_forward
