// Family mma, backward: which schedules are legal, and what its templates are filled with.
#include "generator/recipe.hpp"

namespace flashjit {

Legality legal_mma_backward(const Problem&, const MmaBackwardSchedule&, const Target&) {
  return {"family mma has no backward pass yet"};
}

std::vector<Recipe> recipes_mma_backward(const Problem&, const MmaBackwardSchedule&, const Target&) {
  return {};
}

}  // namespace flashjit
