// P and dS of a tile of queries and a tile of keys (FlashAttention-2, Dao, arXiv 2307.08691, algorithm 2).
#pragma once

#include "params/backward.h"
#include "parts/simt/layout.cuh"
#include "parts/simt/mask.cuh"
#include "parts/simt/scores.cuh"
#include "ptx/infinity.cuh"
#include "ptx/math.cuh"

constexpr float kLog2e = 1.442695040888963407f;
/*%#twofold%*/
constexpr float kLn2 = 0.693147180559945309f;
/*%/twofold%*/

// What the forward pass and the preprocessing kernel computed for a thread's rows.
struct Rows {
  float lse[kRows];    // +inf, so that P is 0, for rows that see no key or lie past the last
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

/*%#twofold%*/
// S = Q K^T as s + lost: one FMA that rounds, and one for what the first has lost (Ogita, Rump, Oishi,
// Accurate Sum and Dot Product, 2005). Summing in blocks (scores.cuh) would not help: 8 dims are a single
// block, within which a large term rounds 8 times.
__device__ __forceinline__ void multiply_twofold(float (&s)[kRows][kKeys], float (&lost)[kRows][kKeys],
                                                 const float* q, const float* k, const Place& place) {
  q += place.row * kStrideQk;
  k += place.key_lane * kStrideQk;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) s[i][j] = lost[i][j] = 0;
  }
  run_steps<kBlock, kHeadDim / kBlock>(
      [&](RowFragment<kBlock>& a, int step) { a.load(q + kBlock * step, kStrideQk); },
      [&](const RowFragment<kBlock>& a, int step) {
#pragma unroll
        for (int j = 0; j < kKeys; ++j) {
          float b[kBlock];
          load_floats<kBlock>(b, k + j * kLanes * kStrideQk + kBlock * step);
#pragma unroll
          for (int x = 0; x < kBlock; ++x) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
              const float sum = fmaf(a.at[i][x], b[x], s[i][j]);
              lost[i][j] += fmaf(a.at[i][x], b[x], s[i][j] - sum);
              s[i][j] = sum;
            }
          }
        }
      });
}

// exp((s + lost) * scale - lse). The rounding errors of scaling, difference and change of base are known,
// too, as rest: exp(x + rest) is exp(x) * (1 + rest). The intrinsic keeps the compiler from fusing the
// product into an FMA, which would round differently.
__device__ __forceinline__ float weight_twofold(float s, float lost, float scale, float lse) {
  if (s == -kInfinity) return 0;  // lost is NaN then
  const float high = __fmul_rn(s, scale);
  const float low = fmaf(lost, scale, fmaf(s, scale, -high));
  const float score = high + low;
  const float distance = score - lse;
  const float power = distance * kLog2e;
  const float weight = exp2_fast(power);
  const float rest = (low - (score - high)) + (score - (distance + lse)) + fmaf(power, -kLn2, distance);
  // If one key has all the weight, the LSE is its score, rounded the same way. If the weight is 0, the rest
  // may be inf - inf.
  return distance == 0 || weight == 0 ? weight : fmaf(weight, rest, weight);
}

/*%/twofold%*/
// P of a tile. The difference is taken before the change of base: where a weight matters the difference is
// small, and so is its rounding error. seen(i) is the number of the tile's keys that row i sees, counted from
// the thread's first.
template <bool kMasked, class Seen>
__device__ __forceinline__ void weigh(float (&p)[kRows][kKeys], const float* q, const float* k,
                                      const Rows& rows, float scale, const Place& place, Seen seen) {
  /*%#twofold%*/
  float lost[kRows][kKeys];
  multiply_twofold(p, lost, q, k, place);
  /*%/twofold%*/
  /*%^twofold%*/
  multiply_rows<kHeadDim, kStrideQk>(p, q, k, place);
  /*%/twofold%*/
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int keys = kMasked ? seen(i) : 0;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      /*%#twofold%*/
      p[i][j] = weight_twofold(p[i][j], lost[i][j], scale, rows.lse[i]);
      /*%/twofold%*/
      /*%^twofold%*/
      p[i][j] = exp2_fast(fmaf(p[i][j], scale, -rows.lse[i]) * kLog2e);
      /*%/twofold%*/
      if (kMasked && j * kLanes >= keys) p[i][j] = 0;
    }
  }
}

// Turns dP into dS, without the scale.
__device__ __forceinline__ void differentiate(float (&ds)[kRows][kKeys], const float (&p)[kRows][kKeys],
                                              const Rows& rows) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) ds[i][j] = p[i][j] * (ds[i][j] - rows.delta[i]);
  }
}

// Stores to shared memory, row after row of the tile; the padding keeps a warp's stores in different banks.
__device__ __forceinline__ void store_weights(float* to, const float (&weights)[kRows][kKeys],
                                              const Place& place) {
  to += place.row * kStrideP + place.key_lane;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) to[i * kRowLanes * kStrideP + j * kLanes] = weights[i][j];
  }
}
