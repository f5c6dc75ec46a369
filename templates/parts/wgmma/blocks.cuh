// Which blocks of keys the rows of a tile see, and in which order.
#pragma once
#include "params/forward.h"
#include "parts/wgmma/ends_first.cuh"
#include "parts/wgmma/tiles.cuh"

// Blocks that some of the 64 rows from `row` on sees; none where the rows are past the end.
__device__ __forceinline__ int blocks_of_rows(int row, const ForwardParams& p) {
  return row < row_count(p) ? (visible_keys(row + 64, p) + kTileN - 1) / kTileN : 0;
}

/*%#causal%*/
// Blocks 0 .. n - 1 are seen in full by all rows from `row` on, and each row has seen a key of a later block
// before.
__device__ __forceinline__ int full_blocks(int row, const ForwardParams& p) {
  return max(0, (row >> p.packed) + p.seqlen_k - p.seqlen_q) / kTileN;
}
/*%/causal%*/

// The block of a tile that has `left` others still to come.
__device__ __forceinline__ int block_at(int left, const Tile& tile, const ForwardParams& p) {
  /*%#causal%*/
  /*%^alternate%*/
  const int full = full_blocks(tile.row, p);
  /*%/alternate%*/
  /*%#alternate%*/
  const int full = full_blocks(tile.row / kRowStep * kRowStep, p);  // by the cluster's first row
  /*%/alternate%*/
  /*%/causal%*/
  /*%^causal%*/
  const int full = tile.blocks - 1;
  /*%/causal%*/
  return ends_first(left, full);
}
