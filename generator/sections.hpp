// Sections of L2: in what order a kernel under a mask takes its tiles.
#pragma once

#include "flashjit/problem.hpp"

namespace flashjit {

// (batch, head) pairs of a section, of which the longest tiles come first, and the pair at which the last
// section begins.
struct Sections {
  long long pairs = 0, last = 0;
};

// For a kernel that runs in `ctas` CTAs (or clusters) at a time, has so many tiles of a head, and whose
// sections are about `section_bytes` of K and V; 0: all pairs are one. `tiled` is the shape as tiles see it.
Sections sections_of(const Problem& problem, const Shape& tiled, long long tiles_of_head, int section_bytes,
                     long long ctas);

}  // namespace flashjit
