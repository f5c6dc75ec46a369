// The running softmax of FlashAttention-2 (Dao 2023, section 3.1) over a thread's rows.
#pragma once

#include "parts/simt/layout.cuh"
#include "ptx/infinity.cuh"
#include "ptx/math.cuh"

struct Running {
  float maximum[kRows];      // of the row so far, in units of log2; -inf before it has seen a key
  float sum[kRows];          // of this thread's own weights; the lanes' sums meet only at the end
  float o[kRows][kColumns];  // weighted by exp2(s - maximum)
};

// Combines a value over the lanes that share a row.
template <class Combine>
__device__ __forceinline__ float across_keys(float value, Combine combine) {
  value = combine(value, __shfl_xor_sync(0xffffffffu, value, 1));
#pragma unroll
  for (int bit = 4; bit < 2 * kLanes; bit *= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, bit));
  return value;
}

// Turns S into weights and rescales what was summed under the old maximum.
__device__ __forceinline__ void update_softmax(Running& running, float (&s)[kRows][kKeys]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float maximum = s[i][0];
#pragma unroll
    for (int j = 1; j < kKeys; ++j) maximum = fmaxf(maximum, s[i][j]);
    maximum = across_keys(maximum, [](float a, float b) { return fmaxf(a, b); });
    maximum = fmaxf(maximum, running.maximum[i]);
    // A row that has seen no key yet: -inf - (-inf) would be NaN, -inf - 0 gives the weight 0.
    const float shift = maximum == -kInfinity ? 0.0f : maximum;
    const float rescale = exp2_fast(running.maximum[i] - shift);
    running.maximum[i] = maximum;
    float sum = running.sum[i] * rescale;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      s[i][j] = exp2_fast(s[i][j] - shift);
      sum += s[i][j];
    }
    running.sum[i] = sum;
#pragma unroll
    for (int x = 0; x < kColumns; ++x) running.o[i][x] *= rescale;
  }
}
