// From a caller's ForwardArgs to the parameters of a kernel, with every check that costs next to nothing.
#pragma once

#include "flashjit/plan.hpp"
#include "flashjit/problem.hpp"
#include "templates/params/forward.h"

namespace flashjit::api {

// Fills in all of `params` except what depends on the kernel (packs of heads, tiles_m, sections, riffled
// tiles, clusters with their cuts and memory, tile_counter, and the divisors). Returns whether there is
// anything to compute (false: no batch or no query rows). Throws Error{invalid_argument} that names the
// argument, its value and what it may be. Allocates only if it throws.
bool make_forward_params(const Problem& problem, const Shape& shape, const ForwardArgs& args,
                         ForwardParams& params);

}  // namespace flashjit::api
