// From a user's ForwardArgs to the parameters of a kernel, with every check that costs nothing to speak of.
#pragma once

#include "flashjit/plan.hpp"
#include "flashjit/problem.hpp"
#include "templates/params/forward.h"

namespace flashjit::api {

// Fills all of `params` but what depends on the kernel (packs of heads, tiles_m, sections, riffled tiles,
// clusters with their cuts and memory, tile_counter, and the divisors), and returns whether there is anything
// to compute (false: no batch or no query rows). Throws Error{invalid_argument} that names the argument, what
// it was and what it may be. Allocates nothing unless it throws.
bool make_forward_params(const Problem& problem, const Shape& shape, const ForwardArgs& args,
                         ForwardParams& params);

}  // namespace flashjit::api
