// Family wgmma, backward: which schedules are legal, and what its templates are filled with.
#include "generator/recipe.hpp"

namespace flashjit {

Legality legal_wgmma_backward(const Problem&, const WgmmaBackwardSchedule&, const Target&) {
  return {"family wgmma has no backward pass yet"};
}

std::vector<Recipe> recipes_wgmma_backward(const Problem&, const WgmmaBackwardSchedule&, const Target&) {
  return {};
}

}  // namespace flashjit
