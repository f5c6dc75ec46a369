// The end of a tile: O is normalised and leaves through shared memory and TMA.
#pragma once
#include "params/forward.h"
#include "parts/wgmma/consumer.cuh"
#include "parts/wgmma/fragments.cuh"
#include "parts/wgmma/layout.cuh"
/*%#lse%*/
#include "parts/wgmma/lse.cuh"
/*%/lse%*/
#include "parts/wgmma/rows.cuh"
#include "parts/wgmma/softmax.cuh"
#include "parts/wgmma/tiles.cuh"
#include "ptx/convert.cuh"
#include "ptx/fence_async_shared.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/reciprocal.cuh"
#include "ptx/shuffle.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma_store.cuh"

// 1 / sum of the rows' exponentials, 0 for a row that saw no key.
__device__ __forceinline__ void normalise(const SoftmaxState& rows, float (&inverse)[2], float (&sum)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    sum[row] = quad_sum(rows.sum[row]);
    inverse[row] = sum[row] == 0 ? 0.0f : reciprocal_fast(sum[row]);
  }
}

// Two neighbouring accumulators as a pair, normalised; zeros where the head dim has ended.
__device__ __forceinline__ unsigned output_pair(const float (&o)[kHeadDimV / 2], int i, float inverse) {
  return i < kHeadDimV / 2 ? pack(o[i] * inverse, o[i + 1] * inverse) : 0;
}

/*%#o_apart%*/
// O in kOPasses passes of whole panels.
/*%/o_apart%*/
/*%#o_through_q%*/
// O at once, in Q's place.
/*%/o_through_q%*/
__device__ __forceinline__ void store_output(const Consumer& consumer, const float (&o)[kHeadDimV / 2],
                                             const Tile& tile, const float (&inverse)[2],
                                             const TensorMap& map_o, const ForwardParams& p) {
  const unsigned staged = consumer.shared + kO + consumer.warpgroup * kOStep;
  const bool leader = threadIdx.x % 128 == 0;
#pragma unroll
  for (int first_panel = 0; first_panel < kPanelsV; first_panel += kPassPanels) {
    /*%^o_through_q%*/
    if (leader) bulk_wait_read();
    consumer.meet();
/*%/o_through_q%*/
#pragma unroll
    for (int step = 0; step < 4 * kPassPanels; ++step) {
      const int x = 8 * (4 * first_panel + step);
      stmatrix(staged + fragment_offset(step), output_pair(o, x, inverse[0]),
               output_pair(o, x + 2, inverse[1]), output_pair(o, x + 4, inverse[0]),
               output_pair(o, x + 6, inverse[1]));
    }
    fence_async_shared();
    consumer.meet();
    if (leader) {
#pragma unroll
      for (int panel = 0; panel < kPassPanels; ++panel) {
        tma_store(map_o, staged + panel * 64 * kRowBytes,
                  rows_at(first_panel + panel, tile.row + kRowStep * consumer.warpgroup, tile, p));
      }
      bulk_commit();
    }
  }
  /*%#o_through_q%*/
  if (leader) {
    bulk_wait_read();
    mbarrier_arrive(consumer.shared + kQEmpty + 8 * consumer.warpgroup);
  }
  /*%/o_through_q%*/
}

__device__ __forceinline__ void finish(Consumer& consumer, const float (&o)[kHeadDimV / 2], const Tile& tile,
                                       const TensorMap& map_o, const ForwardParams& p) {
  float inverse[2], sum[2];
  normalise(consumer.softmax.rows, inverse, sum);
  /*%#lse%*/
  store_lse(tile, RowsOfThread(tile.row + kRowStep * consumer.warpgroup, p), consumer.softmax.rows, sum, p);
  /*%/lse%*/
  store_output(consumer, o, tile, inverse, map_o, p);
}
