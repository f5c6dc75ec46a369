// The warpgroup that computes S^T and P^T, and sums dV.
#pragma once

#include "params/backward.h"
/*%#causal%*/
#include "parts/diagonal.cuh"
/*%/causal%*/
#include "parts/mma/backward_key_tile.cuh"
#include "parts/mma/backward_weights_split.cuh"
#include "parts/wgmma_fp32/ring_place.cuh"
#include "parts/wgmma_fp32_backward/arrive.cuh"
#include "parts/wgmma_fp32_backward/gradient.cuh"
#include "parts/wgmma_fp32_backward/layout.cuh"
#include "parts/wgmma_fp32_backward/scores.cuh"
#include "parts/wgmma_fp32_backward/steps.cuh"
#include "parts/wgmma_fp32_backward/weights_place.cuh"
#include "ptx/math.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/named_barrier_arrive.cuh"
#include "ptx/shared_pair.cuh"
#include "ptx/thread_index.cuh"

// p = P^T of a step.
/*%#causal%*/
// edge: the first of the tile's rows that sees the CTA's first key; each key further on is seen from one row
// later.
/*%/causal%*/
/*%^causal%*/
// edge: how many of the CTA's keys exist.
/*%/causal%*/
__device__ __forceinline__ void find_weights(float (&p)[32], const Scores& s, unsigned lse_of_rows, int edge,
                                             float scale) {
  const int thread = thread_index() % 128;
  const int key = thread / 32 * 16 + thread % 32 / 4;  // the thread's first
#pragma unroll
  for (int i = 0; i < 32; i += 4) {
    const int row = 2 * i + thread % 4 * 2;
    const float2 lse = load_pair(lse_of_rows + row * 4);
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      p[i + x] = exp2_fast(log2_weight(s.high[i + x], s.low[i + x], scale, x % 2 == 0 ? lse.x : lse.y));
      /*%#causal%*/
      if (row + x % 2 < edge + key + x / 2 * 8) p[i + x] = 0;
      /*%/causal%*/
      /*%^causal%*/
      // Keys past the end of K are zeros, but exp(0 - LSE) may be infinite.
      if (key + x / 2 * 8 >= edge) p[i + x] = 0;
      /*%/causal%*/
    }
  }
}

__device__ __forceinline__ void sum_dv(float (&dv)[kHeadDimV / 2], unsigned shared,
                                       const BackwardParams& params) {
  const KeyTile tile = key_tile_of_block(params);
  Steps step(params, tile);
  for (RingPlace place; step.left > 0; place.advance(), step.advance()) {
    const int barrier = 8 * place.stage;
    const FirstPart<kHeadDim> first_of_k(shared + kK);
    mbarrier_wait(shared + kQFull + barrier, place.parity);
    Scores scores;
    scores.multiply<kHeadDim>(first_of_k, shared + kK, shared + kQ + place.stage * TileQK::kBytes);
    arrive_for_warp(shared + kQEmpty + barrier);

    float p[32];
    /*%#causal%*/
    const int edge = tile.n * kTileN - diagonal(params) - step.m * kTileM;
    /*%/causal%*/
    /*%^causal%*/
    const int edge = params.seqlen_k - tile.n * kTileN;
    /*%/causal%*/
    find_weights(p, scores, shared + kRows + place.stage * kRowsBytes, edge, params.scale);
    named_barrier_sync(kPlaceIsFree, 256);
    store_weights(shared + kP, p);
    named_barrier_arrive(kPIsThere, 256);

    unsigned fragments[4][kParts][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) split_fragment(fragments[i], &p[8 * i]);
    mbarrier_wait(shared + kDoutFull + barrier, place.parity);
    add_gradient<kHeadDimV>(dv, fragments, shared + kDout + place.stage * TileV::kBytes);
    arrive_for_warp(shared + kDoutEmpty + barrier);
  }
}
