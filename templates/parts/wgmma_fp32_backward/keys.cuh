/*%^dq_sum%*/
// The warpgroup that computes dP^T and dS^T, and sums dK.
/*%/dq_sum%*/
/*%#dq_sum%*/
// The warpgroup that computes dP^T and dS^T, and sums dK and dQ.
/*%/dq_sum%*/
#pragma once

#include "params/backward.h"
#include "parts/mma/backward_key_tile.cuh"
#include "parts/wgmma_fp32/ring_place.cuh"
#include "parts/wgmma_fp32_backward/arrive.cuh"
/*%#dq_sum%*/
#include "parts/wgmma_fp32_backward/dq.cuh"
/*%/dq_sum%*/
#include "parts/wgmma_fp32_backward/gradient.cuh"
#include "parts/wgmma_fp32_backward/layout.cuh"
#include "parts/wgmma_fp32_backward/scores.cuh"
#include "parts/wgmma_fp32_backward/steps.cuh"
#include "parts/wgmma_fp32_backward/weights_place.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/named_barrier_arrive.cuh"
#include "ptx/shared_pair.cuh"
/*%#dq_sum%*/
#include "ptx/stmatrix.cuh"
/*%/dq_sum%*/
#include "ptx/thread_index.cuh"

// ds = dS^T of a step without the scale: P^T (dP^T - delta).
__device__ __forceinline__ void find_ds(float (&ds)[32], const Scores& dp, unsigned shared,
                                        unsigned delta_of_rows) {
  const int thread = thread_index() % 128;
#pragma unroll
  for (int i = 0; i < 32; i += 4) {
    const float2 delta = load_pair(delta_of_rows + 8 * i + thread % 4 * 8);
    const float4 p = load_weights(shared + kP, i);
    ds[i] = p.x * (dp.at(i) - delta.x);
    ds[i + 1] = p.y * (dp.at(i + 1) - delta.y);
    ds[i + 2] = p.z * (dp.at(i + 2) - delta.x);
    ds[i + 3] = p.w * (dp.at(i + 3) - delta.y);
  }
}
/*%#dq_sum%*/

__device__ __forceinline__ void store_ds(unsigned shared, const unsigned (&ds)[4][kParts][4]) {
  const int thread = thread_index() % 128, key = thread / 32 * 16 + thread % 16;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned to = shared + kDs + TileDs::offset(key, 2 * i + thread % 32 / 16);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const unsigned(&f)[4] = ds[i][part];
      stmatrix(to + part * TileDs::kPartBytes, f[0], f[1], f[2], f[3]);
    }
  }
}
/*%/dq_sum%*/

// dk: without the scale.
__device__ __forceinline__ void sum_dk(float (&dk)[kHeadDim / 2], unsigned shared,
                                       const BackwardParams& params) {
  const KeyTile tile = key_tile_of_block(params);
  Steps step(params, tile);
  if (step.left == 0) return;
  named_barrier_arrive(kPlaceIsFree, 256);
  for (RingPlace place; step.left > 0; place.advance(), step.advance()) {
    const int barrier = 8 * place.stage;
    const FirstPart<kHeadDimV> first_of_v(shared + kV);
    mbarrier_wait(shared + kDoutFull + barrier, place.parity);
    Scores dp;
    dp.multiply<kHeadDimV>(first_of_v, shared + kV, shared + kDout + place.stage * TileV::kBytes);
    arrive_for_warp(shared + kDoutEmpty + barrier);

    named_barrier_sync(kPIsThere, 256);  // and so are Q, which P^T was computed from, and delta beside it
    float ds[32];
    find_ds(ds, dp, shared, shared + kRows + place.stage * kRowsBytes + 64 * 4);
    /*%^dq_sum%*/
    if (step.left > 1) named_barrier_arrive(kPlaceIsFree, 256);
    __syncwarp();  // all lanes have read delta before one of them speaks for the warp
    /*%/dq_sum%*/
    unsigned fragments[4][kParts][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) split_fragment(fragments[i], &ds[8 * i]);
    /*%#dq_sum%*/
    named_barrier_sync(kWarpsOfDk, 128);  // P^T, whose place dS^T takes, has been read
    store_ds(shared, fragments);
    /*%/dq_sum%*/

    add_gradient<kHeadDim>(dk, fragments, shared + kQ + place.stage * TileQK::kBytes);
    arrive_for_warp(shared + kQEmpty + barrier);
    /*%#dq_sum%*/

    named_barrier_sync(kWarpsOfDk, 128);  // all of dS^T is there
    unsigned of_queries[4][kParts][4];
    load_ds(of_queries, shared);
    if (step.left > 1) named_barrier_arrive(kPlaceIsFree, 256);
    add_dq(of_queries, shared, step, params);
    /*%/dq_sum%*/
  }
}
