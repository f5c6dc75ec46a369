// LSE goes to device memory directly.
#pragma once
#include "params/forward.h"
#include "parts/wgmma/rows.cuh"
#include "parts/wgmma/softmax.cuh"
#include "parts/wgmma/tiles.cuh"
#include "ptx/infinity.cuh"
#include "ptx/log2.cuh"
#include "ptx/math.cuh"

// Natural log of the sum of exp(scale * score); -infinity where there is no key.
__device__ __forceinline__ void store_lse(const Tile& tile, const RowsOfThread& mine,
                                          const SoftmaxState& rows, const float (&sum)[2],
                                          const ForwardParams& p) {
  // Checked where a row is stored: after an early return ptxas would take the lanes for diverged in all tiles
  // that follow, and descriptors would come from ordinary registers at each product.
  const bool stores = p.lse != nullptr && lane() % 4 == 0;
  float* lse =
      p.lse + (static_cast<long long>(tile.batch) * p.heads + tile.pack * p.heads_of_pack) * p.seqlen_q;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    /*%#above_peaks%*/
    // The headroom is taken back first: a logarithm near -kHeadroom has fewer bits behind the point.
    const float log2_sum = rows.shift[row] - kHeadroom + log2_fast(sum[row] / kSumAfterMove);
    /*%/above_peaks%*/
    /*%^above_peaks%*/
    const float log2_sum = rows.shift[row] + log2_fast(sum[row]);
    /*%/above_peaks%*/
    const int packed_row = mine.row + 8 * row;
    const int place = place_of(packed_row, p);
    if (stores && place < p.heads_of_pack && packed_row < row_count(p)) {
      lse[static_cast<long long>(place) * p.seqlen_q + (packed_row >> p.packed)] =
          sum[row] == 0 ? -kInfinity : log2_sum * kLn2;
    }
  }
}
