// Computes scores a second time, where exponentials taken without a maximum have overflowed. It happens to
// single warps and hardly ever, so it uses no shared memory and few instructions: Q and K come from device
// memory, and warp-level products multiply them.
#pragma once
#include "params/forward.h"
#include "parts/divide.cuh"
#include "parts/wgmma/rows.cuh"
#include "parts/wgmma/score_registers.cuh"
#include "parts/wgmma/tiles.cuh"

// s = q k^T of this warp's 16 rows and a block that lies inside K, laid out as wgmma leaves it: wgmma's
// accumulators are those of a row of mma products, side by side.
__device__ __forceinline__ void recompute_scores(const Tile& tile, int row, int block,
                                                 const ForwardParams& p) {
  const int column = 2 * (lane() % 4);  // this thread's first
  const auto* q = static_cast<const unsigned short*>(p.q) + tile.batch * p.q_batch;
  const auto* k = static_cast<const unsigned short*>(p.k) + tile.batch * p.k_batch +
                  divide(tile.pack, p.by_group) * p.k_head;
  // Rows past the end or of no head are computed from the last row, and never stored.
  const auto row_at = [&](int i) {
    const int packed_row = min(i, row_count(p) - 1);
    return q + (packed_row >> p.packed) * p.q_row +
           (tile.pack * p.heads_of_pack + min(place_of(packed_row, p), p.heads_of_pack - 1)) * p.q_head +
           column;
  };
  const auto* q_low = row_at(row);
  const auto* q_high = row_at(row + 8);
  const auto* k_first = k + (block * kTileN + lane() / 4) * p.k_row + column;
  clear_scores();
#pragma unroll 1
  for (int step = 0; step < kHeadDim; step += 16) {
    /*%#half_step%*/
    add_score_products(q_low + step, q_high + step, k_first + step, 8 * p.k_row, step + 8 < kHeadDim);
    /*%/half_step%*/
    /*%^half_step%*/
    add_score_products(q_low + step, q_high + step, k_first + step, 8 * p.k_row);
    /*%/half_step%*/
  }
}
