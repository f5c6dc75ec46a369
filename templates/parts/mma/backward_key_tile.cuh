// Which tile of keys a CTA of the backward pass owns.
#pragma once

#include "params/backward.h"
#include "ptx/special.cuh"

struct KeyTile {
  int n, head, batch;
};

// All tiles of a K/V head, then the next: what runs together shares Q and dO in the L2. Under a causal mask
// the first keys have most rows to do, and come first. Divided as C++ does: of prepared divisors
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
