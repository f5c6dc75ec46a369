// Which query tile a CTA computes.
#pragma once

#include "params/forward.h"
#include "parts/divide.cuh"

struct TileIndex {
  int m, head, batch;
};

// The tiles in the order of a 1-D grid (65,535 is the limit of the other dimensions).
/*%#causal%*/
// The last rows see most keys: longest tiles first, so that the short ones fill the gaps at the end; but
// among the heads of one section only, whose K and V the L2 can hold.
/*%/causal%*/
/*%^causal%*/
// All tiles of a head, then the next: what runs together shares K and V in the L2.
/*%/causal%*/
__device__ __forceinline__ TileIndex tile_at(const ForwardParams& params, int block) {
  TileIndex tile;
  /*%#causal%*/
  // The section's (batch, head) pairs.
  const int first_pair = min(divide(block, params.by_section_tiles) * params.section, params.last_section);
  const bool last = first_pair == params.last_section;
  const int pairs = last ? params.batch * params.heads - params.last_section : params.section;
  const int place = block - first_pair * params.tiles_m;
  const int row = divide(place, last ? params.by_last_section : params.by_section);
  const int pair = first_pair + place - row * pairs;
  tile.m = params.tiles_m - 1 - row;
  /*%/causal%*/
  /*%^causal%*/
  const int pair = divide(block, params.by_tiles);
  tile.m = block - pair * params.tiles_m;
  /*%/causal%*/
  tile.batch = divide(pair, params.by_heads);
  tile.head = pair - tile.batch * params.heads;
  return tile;
}
