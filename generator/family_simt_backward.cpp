// Family simt, backward: which schedules are legal, and what its templates are filled with.
#include "generator/recipe.hpp"

namespace flashjit {

Legality legal_simt_backward(const Problem&, const SimtBackwardSchedule&, const Target&) {
  return {"family simt has no backward pass yet"};
}

std::vector<Recipe> recipes_simt_backward(const Problem&, const SimtBackwardSchedule&, const Target&) {
  return {};
}

}  // namespace flashjit
