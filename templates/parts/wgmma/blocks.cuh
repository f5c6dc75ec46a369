// Which blocks of keys the rows of a tile see, and in which order.
#pragma once
#include "params/forward.h"
/*%#causal%*/
#include "parts/diagonal.cuh"
/*%/causal%*/
/*%^upward%*/
#include "parts/wgmma/ends_first.cuh"
/*%/upward%*/
#include "parts/wgmma/tiles.cuh"

// Blocks that at least one of the 64 rows from `row` on sees; none where the rows are past the end.
__device__ __forceinline__ int blocks_of_rows(int row, const ForwardParams& p) {
  return row < row_count(p) ? (keys_before(row + 64, p) + kTileN - 1) / kTileN : 0;
}

/*%#causal%*/
/*%^upward%*/
// Blocks 0 .. n - 1 are seen in full by all rows from `row` on, and by then each row has seen a key of a
// later block.
/*%/upward%*/
/*%#upward%*/
// Blocks 0 .. n - 1 are seen in full by all rows from `row` on.
/*%/upward%*/
__device__ __forceinline__ int full_blocks(int row, const ForwardParams& p) {
  return max(0, (row >> p.packed) + diagonal(p)) / kTileN;
}
/*%/causal%*/

/*%#upward%*/
// The block of a tile after which `left` others are still to come: from the first one up. So tiles of a head
// that begin together read the same blocks. Downwards, each would begin at its own diagonal, and device
// memory would be asked for all of the head's keys at once.
__device__ __forceinline__ int block_at(int left, const Tile& tile, const ForwardParams&) {
  return tile.blocks - 1 - left;
}
/*%/upward%*/
/*%^upward%*/
// The block of a tile after which `left` others are still to come.
/*%/upward%*/
/*%#full_of_tile%*/
__device__ __forceinline__ int block_at(int left, const Tile& tile, const ForwardParams& p) {
  return ends_first(left, full_blocks(tile.row, p));
}
/*%/full_of_tile%*/
/*%#full_of_cluster%*/
__device__ __forceinline__ int block_at(int left, const Tile& tile, const ForwardParams& p) {
  return ends_first(left, full_blocks(tile.row / kRowStep * kRowStep, p));  // by the cluster's first row
}
/*%/full_of_cluster%*/
/*%^causal%*/
__device__ __forceinline__ int block_at(int left, const Tile& tile, const ForwardParams&) {
  return ends_first(left, tile.blocks - 1);
}
/*%/causal%*/
