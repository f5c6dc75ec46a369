// Which blocks of a CTA's share of the keys the rows of a tile see, and in which order.
#pragma once
#include "params/forward.h"
#include "parts/wgmma/ends_first.cuh"
#include "parts/wgmma/tiles.cuh"

// Blocks of this CTA's share that at least one of the 64 rows from `row` on sees; none where the rows are
// past the end.
__device__ __forceinline__ int blocks_of_rows(int row, const Tile& tile, const ForwardParams& p) {
  const int seen = row < row_count(p) ? (keys_before(row + 64, p) + kTileN - 1) / kTileN : 0;
  return blocks_of_share(seen, tile);
}

/*%#causal%*/
// The share's first n blocks are seen in full by all rows from `row` on, and by then each row has seen a key
// of a later block of the share. Where the diagonal runs through the share's last block, some rows see
// nothing of it, and the block before it is their first: that one is not counted.
__device__ __forceinline__ int full_blocks(int row, const Tile& tile, const ForwardParams& p) {
  const int full = blocks_of_share(keys_before(row + 1, p) / kTileN, tile);
  return max(0, full - (full < blocks_of_rows(row, tile, p)));
}
/*%/causal%*/

// The last of the share's blocks that all rows of the tile see in full, counted from the share's first.
/*%#causal%*/
// No warpgroup has fewer such blocks than the first one, which has the tile's first rows, and full_blocks
// takes off one at most.
__device__ __forceinline__ int last_full_block(const Tile& tile, const ForwardParams& p) {
  return blocks_of_share(keys_before(tile.row + 1, p) / kTileN, tile) - 1;
}
/*%/causal%*/
/*%^causal%*/
__device__ __forceinline__ int last_full_block(const Tile& tile, const ForwardParams&) {
  return tile.blocks - 1;
}
/*%/causal%*/

// The block of a share after which `left` others are still to come.
/*%#even%*/
// In tiles that are shared out, blocks only go from the last one down: CTAs that begin elsewhere in a head's
// keys find in L2 what others began with.
__device__ __forceinline__ int block_at(int left, const Tile& tile, const ForwardParams& p) {
  if (tile.index < p.shared_tiles) return tile.first + left;
  return tile.first + ends_first(left, last_full_block(tile, p));
}
/*%/even%*/
/*%#split%*/
__device__ __forceinline__ int block_at(int left, const Tile& tile, const ForwardParams& p) {
  return tile.first + ends_first(left, last_full_block(tile, p)) * tile.shares;
}
/*%/split%*/
