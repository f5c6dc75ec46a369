// What the templates of family wgmma's forward pass multiply, and what becomes of O's registers: operands
// and instructions that C++ cannot say.
#pragma once

#include "generator/recipe.hpp"

namespace flashjit::wgmma_forward {

// Fills in the lists of templates/parts/wgmma/products.cuh, output_registers.cuh and staged_output.cuh.
// `narrow_k`: K's last panel, where the head dim ends inside it, has rows of its own width.
void list_products(Recipe& recipe, const Problem& problem, const WgmmaSchedule& schedule, bool narrow_k);

}  // namespace flashjit::wgmma_forward
