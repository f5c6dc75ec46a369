// Which query tile a CTA computes.
#pragma once

#include "params/forward.h"
#include "parts/divide.cuh"

struct TileIndex {
  int m, head, batch;
};

// The order of tiles along a 1-D grid (the other dimensions are limited to 65,535).
/*%#causal%*/
// The last rows see most keys. Longest tiles come first, so that short ones fill the gaps at the end, but
// only among the heads of one section, whose K and V fit into L2.
/*%/causal%*/
/*%^causal%*/
// All tiles of a head, then the next head's: CTAs that run at the same time share K and V in L2.
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
