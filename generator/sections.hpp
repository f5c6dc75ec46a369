// Sections of L2: in what order a kernel under a mask takes its tiles.
#pragma once

#include "flashjit/problem.hpp"

namespace flashjit {

// The number of (batch, head) pairs in a section, whose longest tiles come first, and the pair at which the
// last section begins.
struct Sections {
  long long pairs = 0, last = 0;
};

// For a kernel of which `ctas` CTAs (or clusters) run at a time, with tiles_of_head tiles per head, and whose
// sections have about `section_bytes` of K and V; 0: all pairs are one section. `tiled` is the shape as tiles
// see it.
Sections sections_of(const Problem& problem, const Shape& tiled, long long tiles_of_head, int section_bytes,
                     long long ctas);

// For a backward pass, `group` heads of which share a tile's keys or are one: as many pairs as have all their
// tiles at work at once, but fewer where tiles are short, and at least one.
Sections sections_at_once(long long pairs, long long tiles_of_head, int group, long long ctas);

}  // namespace flashjit
