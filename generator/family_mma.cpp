// Family mma: which schedules are legal, and what its templates are filled with.
#include <fmt/format.h>

#include "generator/recipe.hpp"

namespace flashjit {

Legality legal_mma(const Problem&, const MmaSchedule&, const Target&) { return {"family mma is not written yet"}; }

std::vector<Recipe> recipes_mma(const Problem&, const MmaSchedule&, const Target&) { return {}; }

}  // namespace flashjit
