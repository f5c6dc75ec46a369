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
#include "parts/wgmma/staged_output.cuh"
#include "parts/wgmma/tiles.cuh"
#include "ptx/fence_async_shared.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/reciprocal.cuh"
#include "ptx/shuffle.cuh"
#include "ptx/tma_store.cuh"

// 1 / sum of the rows' exponentials, 0 for a row that saw no key.
__device__ __forceinline__ void normalise(const SoftmaxState& rows, float (&inverse)[2], float (&sum)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    sum[row] = quad_sum(rows.sum[row]);
    inverse[row] = sum[row] == 0 ? 0.0f : reciprocal_fast(sum[row]);
  }
}

// Panels kPanel to kEnd - 1, whose first fragment lies at `at`.
template <int kPanel, int kEnd, int kPlace = 0>
__device__ __forceinline__ void stage_panels(unsigned at, const float (&inverse)[2]) {
  /*%^last_v%*/
  stage_panel<kPanel, kPlace>(at, inverse);
  /*%/last_v%*/
  /*%#last_v%*/
  /*%#whole_v%*/
  if constexpr (kPanel < kWholePanelsV) stage_panel<kPanel, kPlace>(at, inverse);
  /*%/whole_v%*/
  if constexpr (kPanel == kWholePanelsV) stage_last_panel<kPlace>(at, inverse);
  /*%/last_v%*/
  if constexpr (kPanel + 1 < kEnd) stage_panels<kPanel + 1, kEnd, kPlace + 1>(at, inverse);
}

/*%#o_apart%*/
// O in kOPasses passes of whole panels.
/*%/o_apart%*/
/*%#o_through_q%*/
// O at once, in Q's place. The products that read Q are complete, and a warp's rows of O lie where its own
// rows of Q were.
/*%/o_through_q%*/
template <int kFirstPanel = 0>
__device__ __forceinline__ void store_output(const Consumer& consumer, const Tile& tile,
                                             const float (&inverse)[2], const TensorMap& map_o,
                                             const ForwardParams& p) {
  const unsigned staged = consumer.shared + kO + consumer.warpgroup * kOStep;
  const bool leader = threadIdx.x % 128 == 0;
  /*%^o_through_q%*/
  if (leader) bulk_wait_read();
  consumer.meet();
  /*%/o_through_q%*/
  stage_panels<kFirstPanel, kFirstPanel + kPassPanels>(staged + fragment_offset(0), inverse);
  fence_async_shared();
  consumer.meet();
  if (leader) {
#pragma unroll
    for (int panel = 0; panel < kPassPanels; ++panel) {
      tma_store(map_o, staged + panel * 64 * kRowBytes,
                rows_at(kFirstPanel + panel, tile.row + kRowStep * consumer.warpgroup, tile, p));
    }
    bulk_commit();
  }
  /*%#o_through_q%*/
  /*%#q_again%*/
  if (leader) {
    bulk_wait_read();
    mbarrier_arrive(consumer.shared + kQEmpty + 8 * consumer.warpgroup);
  }
  /*%/q_again%*/
  /*%#one_each%*/
  if (leader) bulk_wait_read();
  /*%/one_each%*/
  /*%/o_through_q%*/
  /*%#passes%*/
  if constexpr (kFirstPanel + kPassPanels < kPanelsV) {
    store_output<kFirstPanel + kPassPanels>(consumer, tile, inverse, map_o, p);
  }
  /*%/passes%*/
}

__device__ __forceinline__ void finish(Consumer& consumer, const Tile& tile, const TensorMap& map_o,
                                       const ForwardParams& p) {
  float inverse[2], sum[2];
  normalise(consumer.softmax.rows, inverse, sum);
  /*%#lse%*/
  store_lse(tile, RowsOfThread(tile.row + kRowStep * consumer.warpgroup, p), consumer.softmax.rows, sum, p);
  /*%/lse%*/
  store_output(consumer, tile, inverse, map_o, p);
}
