// Masks the scores of one accumulator (its layout: parts/mma/softmax.cuh).
#pragma once

#include "ptx/infinity.cuh"

// Row 0 of the accumulator sees its first `seen` keys (none if negative), and each row further down sees
// kMore keys more. Scores of the other keys become -inf.
template <int kMore, int kScores>
__device__ __forceinline__ void mask_keys(float (&scores)[kScores], int seen) {
  const int lane = threadIdx.x % 32;
  seen += kMore * (lane / 4) - lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int key = i / 4 * 8 + i % 2, row = i / 2 % 2 * 8;
    if (key - kMore * row >= seen) scores[i] = -kInfinity;
  }
}
