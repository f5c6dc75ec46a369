// P^T of the backward pass over keys: a warp's own rows of S^T become weights, which the other half reads.
#pragma once

#include "params/backward.h"
/*%#causal%*/
#include "parts/diagonal.cuh"
/*%/causal%*/
#include "parts/mma/backward_place.cuh"
#include "ptx/convert.cuh"
#include "ptx/infinity.cuh"
#include "ptx/math.cuh"
#include "ptx/shared_pair.cuh"
#include "ptx/store_shared_16.cuh"

// Hides what the mask hides. The tile's keys begin at `first_key`, its rows at `first_row`.
/*%#causal%*/
__device__ __forceinline__ void hide_scores(float (&scores)[kRowTiles][kOwnRows / 2], const Place& at,
                                            int first_key, int first_row, const BackwardParams& params) {
/*%/causal%*/
/*%^causal%*/
__device__ __forceinline__ void hide_scores(float (&scores)[kRowTiles][kOwnRows / 2], const Place& at,
                                            int first_key, int, const BackwardParams& params) {
/*%/causal%*/
  const int first = first_key + at.first_key + at.lane / 4;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int j = 0; j < kOwnRows / 2; ++j) {
      const int key = first + 16 * r + j / 2 % 2 * 8;
      /*%#causal%*/
      const int row = first_row + at.own_step * 16 + j / 4 * 8 + at.lane % 4 * 2 + j % 2;
      const bool hidden = key > row + diagonal(params);
      /*%/causal%*/
      /*%^causal%*/
      const bool hidden = key >= params.seqlen_k;
      /*%/causal%*/
      if (hidden) scores[r][j] = -kInfinity;
    }
  }
}

// P^T = exp(S^T - LSE) in fragments of 16 keys and 16 rows. `lse` is where the tile's rows have theirs, to
// base 2.
__device__ __forceinline__ void weigh(unsigned (&p)[kOwnSteps][kRowTiles][4],
                                      const float (&scores)[kRowTiles][kOwnRows / 2], const Place& at,
                                      unsigned lse, float scale_log2) {
  const unsigned lse_lane = lse + at.own_step * 64 + at.lane % 4 * 8;
#pragma unroll
  for (int j = 0; j < kOwnRows / 8; ++j) {
    const float2 of = load_pair(lse_lane + 32 * j);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* const score = &scores[r][4 * j + 2 * half];
        p[j / 2][r][j % 2 * 2 + half] =
            pack(exp2_fast(score[0] * scale_log2 - of.x), exp2_fast(score[1] * scale_log2 - of.y));
      }
    }
  }
}

__device__ __forceinline__ void store_weights(unsigned p_tile, const unsigned (&p)[kOwnSteps][kRowTiles][4],
                                              const Place& at) {
#pragma unroll
  for (int step = 0; step < kOwnSteps; ++step) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const unsigned(&f)[4] = p[step][r];
      store_shared(p_tile + at.p_fragment + ((at.own_step + step) * kRowTiles + r) * 512,
                   uint4{f[0], f[1], f[2], f[3]});
    }
  }
}
