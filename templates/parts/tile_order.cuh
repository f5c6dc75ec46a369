// Which query tile a CTA computes.
#pragma once

#include "params/forward.h"

struct TileIndex {
  int m, head, batch;
};

// The asm keeps the compiler from holding what this computes through the kernel's loop, where registers are short: whoever
// needs it again calls again.
__device__ __forceinline__ int block_index() {
  int index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  return index;
}

// One CTA per tile in a 1-D grid (65,535 is the limit of the other dimensions). Neighbours share a head, so that its K and
// V stay in the L2.
__device__ __forceinline__ TileIndex tile_of_block(const ForwardParams& params) {
  const int block = block_index();
  const int pair = block / params.tiles_m;
  TileIndex tile;
  tile.m = block - pair * params.tiles_m;
  /*%#causal%*/
  tile.m = params.tiles_m - 1 - tile.m;  // the last rows see most keys: longest first
  /*%/causal%*/
  tile.batch = pair / params.heads;
  tile.head = pair - tile.batch * params.heads;
  return tile;
}
