// Scores a second time, where exponentials taken in haste overflowed. It happens to a warp alone and hardly
// ever, so it takes no shared memory and few instructions: Q and K come from device memory, and warp-level
// products multiply them.
#pragma once
#include "params/forward.h"
#include "parts/divide.cuh"
#include "parts/wgmma/rows.cuh"
#include "parts/wgmma/score_registers.cuh"
#include "parts/wgmma/tiles.cuh"

// Two neighbouring elements of a row; zeros past the head dim.
__device__ __forceinline__ unsigned element_pair(const unsigned short* row, int column) {
  unsigned pair = 0;
  if (column < kHeadDim) asm volatile("ld.global.b32 %0, [%1];" : "=r"(pair) : "l"(row + column) : "memory");
  return pair;
}

// s = q k^T of this warp's 16 rows and a block that lies inside of K, as wgmma leaves it: an accumulator of
// wgmma is a row of mma's, side by side.
__device__ __forceinline__ void recompute_scores(const Tile& tile, int row, int block,
                                                 const ForwardParams& p) {
  const int column = 2 * (lane() % 4);
  const auto* q = static_cast<const unsigned short*>(p.q) + tile.batch * p.q_batch;
  const auto* k = static_cast<const unsigned short*>(p.k) + tile.batch * p.k_batch +
                  divide(tile.head, p.by_group) * p.k_head;
  // Rows past the end are computed from the last one and never stored.
  const auto row_at = [&](int i) {
    const int packed_row = min(i, row_count(p) - 1);
    return q + (packed_row >> p.packed) * p.q_row +
           (tile.head + (packed_row & ((1 << p.packed) - 1))) * p.q_head;
  };
  const auto* q_low = row_at(row);
  const auto* q_high = row_at(row + 8);
  const auto* k_first = k + (block * kTileN + lane() / 4) * p.k_row;
  clear_scores();
#pragma unroll 1
  for (int step = column; step < kHeadDim + column; step += 16) {
    const unsigned a[4] = {element_pair(q_low, step), element_pair(q_high, step),
                           element_pair(q_low, step + 8), element_pair(q_high, step + 8)};
    /*%#half_step%*/
    add_score_products(a, k_first + step, 8 * p.k_row, step + 8 < kHeadDim);
    /*%/half_step%*/
    /*%^half_step%*/
    add_score_products(a, k_first + step, 8 * p.k_row);
    /*%/half_step%*/
  }
}
