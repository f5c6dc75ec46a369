// Family simt: which schedules are legal, and what its templates are filled with.
#include <fmt/format.h>

#include "generator/recipe.hpp"

namespace flashjit {

Legality legal_simt(const Problem&, const SimtSchedule&, const Target&) { return {"family simt is not written yet"}; }

std::vector<Recipe> recipes_simt(const Problem&, const SimtSchedule&, const Target&) { return {}; }

}  // namespace flashjit
