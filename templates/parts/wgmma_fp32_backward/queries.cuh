// The warpgroup that computes dP and dS of a CTA's query rows, and sums dQ.
#pragma once

#include "params/backward.h"
#include "parts/mma/backward_query_tile.cuh"
#include "parts/mma/visible_keys.cuh"
#include "parts/wgmma_fp32/ring_place.cuh"
#include "parts/wgmma_fp32_backward/arrive.cuh"
#include "parts/wgmma_fp32_backward/gradient.cuh"
#include "parts/wgmma_fp32_backward/queries_layout.cuh"
#include "parts/wgmma_fp32_backward/row_numbers.cuh"
#include "parts/wgmma_fp32_backward/scores.cuh"
#include "parts/wgmma_fp32_backward/weights_place.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/named_barrier_arrive.cuh"

// dq: without the scale.
__device__ __forceinline__ void sum_dq(float (&dq)[kHeadDim / 2], unsigned shared,
                                       const BackwardParams& params) {
  const QueryTile tile = query_tile_of_block(params);
  const VisibleKeys visible(params, tile.m * kTileM);
  if (visible.masked_end == 0) return;
  named_barrier_arrive(kPlaceIsFree, 256);
  const float2 delta = row_numbers(params, tile, RowParts::kDelta);
  mbarrier_wait(shared + kDoutFull, 0);
  RingPlace place;
  for (int n = 0; n < visible.masked_end; ++n, place.advance()) {
    const int barrier = 8 * place.stage;
    const FirstPart<kHeadDimV> first_of_dout(shared + kDout);
    mbarrier_wait(shared + kVFull + barrier, place.parity);
    Scores dp;
    dp.multiply<kHeadDimV>(first_of_dout, shared + kDout, shared + kV + place.stage * TileV::kBytes);
    arrive_for_warp(shared + kVEmpty + barrier);

    named_barrier_sync(kPIsThere, 256);  // and K, which was there before
    float ds[32];                        // without the scale: P (dP - delta)
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      const float4 p = load_weights(shared + kP, i);
      ds[i] = p.x * (dp.at(i) - delta.x);
      ds[i + 1] = p.y * (dp.at(i + 1) - delta.x);
      ds[i + 2] = p.z * (dp.at(i + 2) - delta.y);
      ds[i + 3] = p.w * (dp.at(i + 3) - delta.y);
    }
    if (n + 1 < visible.masked_end) named_barrier_arrive(kPlaceIsFree, 256);
    unsigned fragments[4][kParts][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) split_fragment(fragments[i], &ds[8 * i]);
    add_gradient<kHeadDim>(dq, fragments, shared + kK + place.stage * TileQK::kBytes);
    arrive_for_warp(shared + kKEmpty + barrier);
  }
}
