// The end of a tile: O normalised, and the rows' log-sum-exp.
#pragma once

#include "parts/mma/softmax.cuh"
#include "ptx/math.cuh"
#include "ptx/shuffle.cuh"

// Divides by the row's sum of exponentials; a row that saw no key becomes 0. Leaves the whole row's sum in
// rows.sum.
template <int kOutputs>
__device__ __forceinline__ void normalise(SoftmaxRows& rows, float (&output)[kOutputs]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    rows.sum[row] = quad_sum(rows.sum[row]);
    const float inverse = rows.sum[row] == 0.0f ? 0.0f : reciprocal_fast(rows.sum[row]);
#pragma unroll
    for (int i = 0; i < kOutputs; i += 4) {
      output[i + 2 * row] *= inverse;
      output[i + 2 * row + 1] *= inverse;
    }
  }
}

/*%#lse%*/
// log(sum(exp(scale * x))) of a row, from the whole row's sum.
__device__ __forceinline__ float log_sum_exp(const SoftmaxRows& rows, int row) {
  return rows.sum[row] == 0.0f ? -kInfinity : (rows.shift[row] + log2_fast(rows.sum[row])) * kLn2;
}

/*%/lse%*/
