// Sections of L2: in what order a kernel under a mask takes its tiles.
#pragma once

#include "flashjit/problem.hpp"
#include "templates/params/forward.h"

namespace flashjit::api {

// (batch, head) pairs of a section, of which the longest tiles come first, and the pair at which the last
// section begins.
struct Sections {
  long long pairs = 0, last = 0;
};

// For a call whose parameters are filled in but for these, and a kernel that runs in `ctas` CTAs (or
// clusters) at a time and whose sections are about `section_bytes` of K and V; 0: all pairs are one.
Sections sections_of(const Problem& problem, const ForwardParams& params, int section_bytes, long long ctas);

}  // namespace flashjit::api
