// Which tile comes when, and which keys its rows see.
#pragma once
#include "params/forward.h"

struct Tile {
  int row;  // first query row
  int head, batch;
  int blocks;  // blocks of kTileN keys that some row of the tile sees: 0 .. blocks - 1
};

// Keys that some row before `row_end` sees: 0 .. visible - 1.
__device__ __forceinline__ int visible_keys(int row_end, const ForwardParams& p) {
  /*%#causal%*/
  return max(0, min(p.seqlen_k, min(row_end, p.seqlen_q) + p.seqlen_k - p.seqlen_q));
  /*%/causal%*/
  /*%^causal%*/
  return p.seqlen_k;
  /*%/causal%*/
}

// Blocks that some of the 64 rows from `row` on sees; none where the rows are past the end.
__device__ __forceinline__ int blocks_of_rows(int row, const ForwardParams& p) {
  return row < p.seqlen_q ? (visible_keys(row + 64, p) + kTileN - 1) / kTileN : 0;
}

/*%#causal%*/
// Blocks 0 .. n - 1 are seen in full by all rows from `row` on, and each row has seen a key of a later block
// before.
__device__ __forceinline__ int full_blocks(int row, const ForwardParams& p) {
  return max(0, row + p.seqlen_k - p.seqlen_q) / kTileN;
}
/*%/causal%*/

__device__ __forceinline__ int tile_count(const ForwardParams& p) {
  return p.tiles_m * p.heads * p.batch;
}

/*%#sections%*/
// Longest tiles first, among the heads of a section: what runs together finds its K and V in L2.
/*%/sections%*/
/*%^sections%*/
// All tiles of a head, then the next head: what runs together shares K and V.
/*%/sections%*/
__device__ __forceinline__ Tile tile_at(int index, const ForwardParams& p) {
  /*%#sections%*/
  const int section_tiles = p.tiles_m * p.section;
  const int first_head = index / section_tiles * p.section;
  const int inside = index - first_head * p.tiles_m;
  const int heads_here = min(p.section, p.heads * p.batch - first_head);
  const int m = p.tiles_m - 1 - inside / heads_here;
  const int batch_head = first_head + inside % heads_here;
  /*%/sections%*/
  /*%^sections%*/
  const int batch_head = index / p.tiles_m;
  const int m = p.tiles_m - 1 - (index - batch_head * p.tiles_m);
  /*%/sections%*/
  Tile tile;
  tile.row = m * kTileM;
  tile.batch = batch_head / p.heads;
  tile.head = batch_head - tile.batch * p.heads;
  tile.blocks = (visible_keys(tile.row + kTileM, p) + kTileN - 1) / kTileN;
  return tile;
}
