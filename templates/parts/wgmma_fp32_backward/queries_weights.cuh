// The warpgroup that computes S and P of a CTA's query rows.
#pragma once

#include "params/backward.h"
#include "parts/mma/backward_query_tile.cuh"
#include "parts/mma/backward_weights_split.cuh"
#include "parts/mma/visible_keys.cuh"
#include "parts/warpgroup.cuh"
#include "parts/wgmma_fp32/ring_place.cuh"
#include "parts/wgmma_fp32_backward/arrive.cuh"
#include "parts/wgmma_fp32_backward/queries_layout.cuh"
#include "parts/wgmma_fp32_backward/row_numbers.cuh"
#include "parts/wgmma_fp32_backward/scores.cuh"
#include "parts/wgmma_fp32_backward/weights_place.cuh"
#include "ptx/math.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/named_barrier_arrive.cuh"

__device__ __forceinline__ void find_weights(unsigned shared, const BackwardParams& params) {
  const QueryTile tile = query_tile_of_block(params);
  const VisibleKeys visible(params, tile.m * kTileM);
  if (visible.masked_end == 0) return;
  const float2 lse = row_numbers(params, tile, RowParts::kLse);
  mbarrier_wait(shared + kQFull, 0);
  RingPlace place;
  for (int n = 0; n < visible.masked_end; ++n, place.advance()) {
    const int barrier = 8 * place.stage;
    const FirstPart<kHeadDim> first_of_q(shared + kQ);
    mbarrier_wait(shared + kKFull + barrier, place.parity);
    Scores scores;
    scores.multiply<kHeadDim>(first_of_q, shared + kQ, shared + kK + place.stage * TileQK::kBytes);
    arrive_for_warp(shared + kKEmpty + barrier);

    float p[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      p[i] = log2_weight(scores.high[i], scores.low[i], params.scale, i / 2 % 2 == 0 ? lse.x : lse.y);
    }
    if (n >= visible.unmasked_end) visible.mask(p, 16 * warp_of_warpgroup(), n * kTileN, params);
#pragma unroll
    for (int i = 0; i < 32; ++i) p[i] = exp2_fast(p[i]);
    named_barrier_sync(kPlaceIsFree, 256);
    store_weights(shared + kP, p);
    named_barrier_arrive(kPIsThere, 256);
  }
}
