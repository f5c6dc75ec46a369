// P and dS of a tile of queries and a tile of keys (FlashAttention-2, Dao, arXiv 2307.08691, algorithm 2).
#pragma once

#include "params/backward.h"
#include "parts/simt/layout.cuh"
#include "parts/simt/mask.cuh"
#include "parts/simt/scores.cuh"
#include "ptx/math.cuh"

constexpr float kLog2e = 1.442695040888963407f;

// What the forward pass and the preprocess left for a thread's rows.
struct Rows {
  float lse[kRows];    // +inf, so that P is 0, for a row that sees no key and beyond the last
  float delta[kRows];  // sum of dO * O

  __device__ __forceinline__ void load(const BackwardParams& params, int head_index, int first_row) {
    const float* const lse_of_head = params.lse + static_cast<long long>(head_index) * params.seqlen_q;
    const float* const delta_of_head = params.delta + static_cast<long long>(head_index) * params.padded_q;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first_row + i * kRowLanes;
      lse[i] = row < params.seqlen_q ? lse_of_head[row] : kInfinity;
      if (lse[i] == -kInfinity) lse[i] = kInfinity;
      delta[i] = delta_of_head[row];  // padded
    }
  }
};

// Scores to weights. The difference is taken before the change of base: where a weight counts it is small,
// and what then rounds is small too. `seen` is how many keys of the tile, from the thread's first on, row i
// sees.
template <bool kMasked, class Seen>
__device__ __forceinline__ void weigh(float (&p)[kRows][kKeys], const Rows& rows, float scale, Seen seen) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int keys = kMasked ? seen(i) : 0;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      p[i][j] = exp2_fast(fmaf(p[i][j], scale, -rows.lse[i]) * kLog2e);
      if (kMasked && j * kLanes >= keys) p[i][j] = 0;
    }
  }
}

// dP to dS, short of the scale.
__device__ __forceinline__ void differentiate(float (&ds)[kRows][kKeys], const float (&p)[kRows][kKeys],
                                              const Rows& rows) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) ds[i][j] = p[i][j] * (ds[i][j] - rows.delta[i]);
  }
}

// Into shared memory, a row of the tile after the other; the padding keeps a warp's stores in different
// banks.
__device__ __forceinline__ void store_weights(float* to, const float (&weights)[kRows][kKeys],
                                              const Place& place) {
  to += place.row * kStrideP + place.key_lane;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) to[i * kRowLanes * kStrideP + j * kLanes] = weights[i][j];
  }
}
