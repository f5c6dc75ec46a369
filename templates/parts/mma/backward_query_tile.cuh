// Which tile of query rows a CTA of the backward pass owns.
#pragma once

#include "params/backward.h"
#include "ptx/block_index.cuh"

struct QueryTile {
  int m, head, batch;
};

// All tiles of a head, then the next head's: CTAs that run at the same time share K and V in L2. Under a
// causal mask the last rows, which see most keys, come first. Plain divisions, as in backward_key_tile.cuh.
__device__ __forceinline__ QueryTile query_tile_of_block(const BackwardParams& params) {
  const int block = block_index();
  const int pair = block / params.tiles;
  QueryTile tile;
  tile.m = params.tiles - 1 - (block - pair * params.tiles);
  tile.batch = pair / params.heads;
  tile.head = pair - tile.batch * params.heads;
  return tile;
}
