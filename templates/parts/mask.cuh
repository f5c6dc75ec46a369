// Masks the scores of one accumulator (its layout: parts/softmax.cuh).
#pragma once

#include "ptx/math.cuh"

// Scores of keys from limit[row] on become -inf. key is that of scores[0] of lane 0 of the quad.
template <int kScores>
__device__ __forceinline__ void mask_keys(float (&scores)[kScores], int key, const int (&limit)[2]) {
  key += threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    if (key + i / 4 * 8 + i % 2 >= limit[i / 2 % 2]) scores[i] = -kInfinity;
  }
}
