// Which tile of keys a CTA of the backward pass owns.
#pragma once

#include "params/backward.h"
#include "ptx/block_index.cuh"

struct KeyTile {
  int n, head, batch;
};

// All tiles of a K/V head, then the next head's: CTAs that run at the same time share Q and dO in L2. Under a
// causal mask the first keys, which most rows see, come first. Plain divisions: with prepared divisors
// (parts/divide.cuh) ptxas makes code that spills at d96 on sm_100.
__device__ __forceinline__ KeyTile key_tile_of_block(const BackwardParams& params) {
  const int block = block_index();
  const int pair = block / params.tiles;
  KeyTile tile;
  tile.n = block - pair * params.tiles;
  tile.batch = pair / params.heads_kv;
  tile.head = pair - tile.batch * params.heads_kv;
  return tile;
}
