// Which rows a thread of a consumer holds (ptx/wgmma.cuh), and which keys they see.
#pragma once
#include "params/forward.h"
#include "parts/warpgroup.cuh"

struct RowsOfThread {
  int row;         // of the first; the second is 8 below
  int visible[2];  // keys that they see
  /*%#shares%*/
  // From one block's first key to the next one's.
  int keys_a_block = kTileN;
  /*%/shares%*/

  __device__ __forceinline__ RowsOfThread(int first_row, const ForwardParams& p)
      : row(first_row + 16 * warp_of_warpgroup() + lane() / 4) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      /*%#causal%*/
      visible[which] = min(((row + 8 * which) >> p.packed) + 1 + p.seqlen_k - p.seqlen_q, p.seqlen_k);
      /*%/causal%*/
      /*%^causal%*/
      visible[which] = p.seqlen_k;
      /*%/causal%*/
    }
  }

  /*%#shares%*/
  // Keys are counted from the first one of `block` on, and blocks every `shares`-th.
  __device__ __forceinline__ void count_from(int block, int shares) {
    visible[0] -= block * kTileN;
    visible[1] -= block * kTileN;
    keys_a_block = shares * kTileN;
  }

  /*%/shares%*/
  /*%#upward%*/
  // Blocks are counted by how many of a tile's are still to come.
  __device__ __forceinline__ void count_up_to(int blocks) {
    visible[0] -= (blocks - 1) * kTileN;
    visible[1] -= (blocks - 1) * kTileN;
  }

  /*%/upward%*/
  // The first column of a block that row 0 or 1 does not see, counted from this thread's first column.
  __device__ __forceinline__ int first_hidden(int which, int block) const {
    /*%#downward%*/
    return visible[which] - block * kTileN - 2 * (lane() % 4);
    /*%/downward%*/
    /*%#upward%*/
    return visible[which] + block * kTileN - 2 * (lane() % 4);
    /*%/upward%*/
    /*%#shares%*/
    return visible[which] - block * keys_a_block - 2 * (lane() % 4);
    /*%/shares%*/
  }
};
