// From scores to P and dS, transposed: a row per key, and a column per query, whose LSE and delta lie in
// shared memory. P and dS are kept as pairs, which is how products take them from registers.
#pragma once
#include "params/backward.h"
/*%#causal%*/
#include "parts/diagonal.cuh"
/*%/causal%*/
#include "parts/wgmma_backward/panels.cuh"
#include "ptx/convert.cuh"
#include "ptx/infinity.cuh"
/*%#fp16%*/
#include "ptx/lane.cuh"
/*%/fp16%*/
#include "ptx/math.cuh"
#include "ptx/shared_pair.cuh"
#include "ptx/unpack.cuh"

// Whether causality or the end of the keys hides a score of 64 keys and the queries from `query` on.
/*%#causal%*/
__device__ __forceinline__ bool needs_mask(int first_key, int query, const BackwardParams& p) {
  return (first_key + 64 > p.seqlen_k) | (query + diagonal(p) < first_key + 63);
}
/*%/causal%*/
/*%^causal%*/
__device__ __forceinline__ bool needs_mask(int first_key, int, const BackwardParams& p) {
  return first_key + 64 > p.seqlen_k;
}
/*%/causal%*/

// The first query that sees a key, counted from `query` on.
/*%#causal%*/
__device__ __forceinline__ int first_seeing(int key, int query, const BackwardParams& p) {
  return key - diagonal(p) - query;
}
/*%/causal%*/
/*%^causal%*/
__device__ __forceinline__ int first_seeing(int, int, const BackwardParams&) {
  return 0;
}
/*%/causal%*/

__device__ __forceinline__ void mask(float (&s)[kTileM / 2], int first_key, int query,
                                     const BackwardParams& p) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int key = first_key + 16 * warp_of_warpgroup() + lane() / 4 + 8 * row;
    // Counted from this thread's first one.
    /*%#fp16%*/
    // With lane() ptxas spills a register here at head_dim 64.
    int first = first_seeing(key, query, p) - 2 * (lane_index() % 4);
    /*%/fp16%*/
    /*%^fp16%*/
    int first = first_seeing(key, query, p) - 2 * (lane() % 4);
    /*%/fp16%*/
    if (key >= p.seqlen_k) first = kTileM;
#pragma unroll
    for (int i = 0; i < kTileM / 4; ++i) {
      if (i / 2 * 8 + i % 2 < first) s[i / 2 * 4 + 2 * row + i % 2] = -kInfinity;
    }
  }
}

// A lane's columns of LSE or delta in shared memory, a float per query.
using Statistics = float2[kTileM / 8];
__device__ __forceinline__ void load_statistics(Statistics& pairs, unsigned from) {
#pragma unroll
  for (int j = 0; j < kTileM / 8; ++j) pairs[j] = load_pair(from + 32 * j + 8 * (lane() % 4));
}

// p = exp(S - LSE).
__device__ __forceinline__ void exponentiate(unsigned (&p)[kTileM / 4], const float (&s)[kTileM / 2],
                                             const Statistics& lse, float scale_log2) {
#pragma unroll
  for (int j = 0; j < kTileM / 8; ++j) {
    const float2 shift = lse[j];
    p[2 * j] =
        pack(exp2_fast(s[4 * j] * scale_log2 - shift.x), exp2_fast(s[4 * j + 1] * scale_log2 - shift.y));
    p[2 * j + 1] =
        pack(exp2_fast(s[4 * j + 2] * scale_log2 - shift.x), exp2_fast(s[4 * j + 3] * scale_log2 - shift.y));
  }
}

/*%^dp_early%*/
// dP begins as -delta, to which the product adds, so that afterwards nothing is left to subtract or wait for.
__device__ __forceinline__ void begin_gradient(float (&dp)[kTileM / 2], const Statistics& delta) {
#pragma unroll
  for (int j = 0; j < kTileM / 8; ++j) {
    dp[4 * j] = dp[4 * j + 2] = -delta[j].x;
    dp[4 * j + 1] = dp[4 * j + 3] = -delta[j].y;
  }
}

/*%/dp_early%*/
/*%#dp_early%*/
// Subtracts delta from dP, once dP is there.
__device__ __forceinline__ void subtract(float (&dp)[kTileM / 2], const Statistics& delta) {
#pragma unroll
  for (int j = 0; j < kTileM / 8; ++j) {
    dp[4 * j] -= delta[j].x;
    dp[4 * j + 1] -= delta[j].y;
    dp[4 * j + 2] -= delta[j].x;
    dp[4 * j + 3] -= delta[j].y;
  }
}
/*%/dp_early%*/

// ds = P (dP - delta), without the scale, which dK and dQ get at the end; delta is in dp already. P is taken
// as it was rounded, since its scores are gone from the registers; p and ds may be the same.
__device__ __forceinline__ void differentiate(unsigned (&ds)[kTileM / 4], const unsigned (&p)[kTileM / 4],
                                              const float (&dp)[kTileM / 2]) {
#pragma unroll
  for (int i = 0; i < kTileM / 4; ++i) {
    ds[i] = pack(low_half(p[i]) * dp[2 * i], high_half(p[i]) * dp[2 * i + 1]);
  }
}
