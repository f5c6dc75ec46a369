// Which tile of query rows a CTA of the backward pass owns.
#pragma once

#include "params/backward.h"
#include "ptx/special.cuh"

struct QueryTile {
  int m, head, batch;
};

// All tiles of a head, then the next: what runs together shares K and V in the L2. Under a causal mask the
// last rows see most keys, and come first. Divided as in backward_key_tile.cuh.
__device__ __forceinline__ QueryTile query_tile_of_block(const BackwardParams& params) {
  const int block = block_index();
  const int pair = block / params.tiles;
  QueryTile tile;
  tile.m = params.tiles - 1 - (block - pair * params.tiles);
  tile.batch = pair / params.heads;
  tile.head = pair - tile.batch * params.heads;
  return tile;
}
