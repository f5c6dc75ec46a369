// Family wgmma: which schedules are legal, and what its templates are filled with.
#include <fmt/format.h>

#include "generator/recipe.hpp"

namespace flashjit {

Legality legal_wgmma(const Problem&, const WgmmaSchedule&, const Target&) { return {"family wgmma is not written yet"}; }

std::vector<Recipe> recipes_wgmma(const Problem&, const WgmmaSchedule&, const Target&) { return {}; }

}  // namespace flashjit
