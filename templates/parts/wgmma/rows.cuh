// Which rows a thread of a consumer holds (ptx/wgmma.cuh), and which keys they see.
#pragma once
#include "params/forward.h"
/*%#causal%*/
#include "parts/diagonal.cuh"
/*%/causal%*/
#include "parts/warpgroup.cuh"
/*%#shares%*/
#include "parts/wgmma/tiles.cuh"
/*%/shares%*/

struct RowsOfThread {
  int row;         // of the first; the second is 8 below
  int visible[2];  // keys that they see
  /*%#split%*/
  // From one block's first key to the next one's.
  int keys_a_block = kTileN;
  /*%/split%*/

  __device__ __forceinline__ RowsOfThread(int first_row, const ForwardParams& p)
      : row(first_row + 16 * warp_of_warpgroup() + lane() / 4) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      /*%#causal%*/
      visible[which] = min(((row + 8 * which) >> p.packed) + 1 + diagonal(p), p.seqlen_k);
      /*%/causal%*/
      /*%^causal%*/
      visible[which] = p.seqlen_k;
      /*%/causal%*/
    }
  }

  /*%#shares%*/
  // Keys are counted from the first one of the tile's first block on.
  __device__ __forceinline__ void count_from(const Tile& tile) {
    visible[0] -= tile.first * kTileN;
    visible[1] -= tile.first * kTileN;
    /*%#split%*/
    keys_a_block = tile.shares * kTileN;
    /*%/split%*/
  }

  /*%/shares%*/
  /*%#upward%*/
  // Blocks are counted by how many of a tile's are still to come.
  __device__ __forceinline__ void count_up_to(int blocks) {
    visible[0] -= (blocks - 1) * kTileN;
    visible[1] -= (blocks - 1) * kTileN;
  }

  /*%/upward%*/
  // The first column of a masked block that row 0 or 1 does not see, counted from this thread's first column.
  // `left` of the tile's blocks are still to come (block_at).
  __device__ __forceinline__ int first_hidden(int which, int left) const {
    /*%#block_by_block%*/
    return visible[which] - left * kTileN - 2 * (lane() % 4);
    /*%/block_by_block%*/
    /*%#upward%*/
    return visible[which] + left * kTileN - 2 * (lane() % 4);
    /*%/upward%*/
    /*%#split%*/
    return visible[which] - left * keys_a_block - 2 * (lane() % 4);
    /*%/split%*/
  }
};
