// Online softmax (FlashAttention-2, algorithm 1) of the rows whose scores a thread holds, with exp(scale * x)
// computed as exp2(scale_log2 * x). The layout is that of an mma accumulator: of 4 neighbouring
// scores the first two belong to row 0, the others to row 1 (8 rows below), and the 4 lanes of a quad share
// these rows.
#pragma once

/*%^split%*/
#include "parts/unset_shift.cuh"
#include "ptx/convert.cuh"
/*%/split%*/
/*%#split%*/
#include "parts/mma/unset_shift_split.cuh"
/*%/split%*/
#include "ptx/math.cuh"
#include "ptx/shuffle.cuh"

struct SoftmaxRows {
  // Subtracted from scale_log2 * score: the row's maximum of that product, or near it.
  float shift[2] = {kUnset, kUnset};
  float sum[2] = {0, 0};  // of this thread's exponentials
};

// The largest of this thread's scores in each of its two rows. Two chains per row, since the latency of max
// counts.
template <int kScores>
__device__ __forceinline__ void find_peaks(const float (&scores)[kScores], float (&peak)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float even = scores[2 * row], odd = scores[2 * row + 1];
#pragma unroll
    for (int i = 4; i < kScores; i += 4) {
      even = fmaxf(even, scores[i + 2 * row]);
      odd = fmaxf(odd, scores[i + 2 * row + 1]);
    }
    peak[row] = fmaxf(even, odd);
  }
}

// Whether a score exceeds its row's shift by more than kLazy. Below that an exponential grows to 2^kLazy at
// most, which costs no precision: O, the sum and P share the factor, and all are floating point.
__device__ __forceinline__ bool outgrown(const SoftmaxRows& rows, const float (&peak)[2], float scale_log2) {
  return peak[0] * scale_log2 - kLazy > rows.shift[0] || peak[1] * scale_log2 - kLazy > rows.shift[1];
}

// Moves the shifts to the rows' maxima and rescales the sums made with the old shifts. All lanes of the warp
// take part.
template <int kOutputs>
__device__ __forceinline__ void move_shift(SoftmaxRows& rows, const float (&peak)[2],
                                           float (&output)[kOutputs], float scale_log2) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float shift = fmaxf(rows.shift[row], quad_max(peak[row]) * scale_log2);
    const float factor = exp2_fast(rows.shift[row] - shift);
    rows.shift[row] = shift;
    rows.sum[row] *= factor;
#pragma unroll
    for (int i = 0; i < kOutputs; i += 4) {
      output[i + 2 * row] *= factor;
      output[i + 2 * row + 1] *= factor;
    }
  }
}

/*%^split%*/
// Turns 8 scores, 4 of each row, into exponentials, packed as the A fragment of mma over 16 keys (the layouts
// agree), and adds them to `sum`.
__device__ __forceinline__ void exponentiate(const float (&shift)[2], const float* scores,
                                             unsigned (&fragment)[4], float (&sum)[2], float scale_log2) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i % 2;
    const float low = exp2_fast(fmaf(scores[2 * i], scale_log2, -shift[row]));
    const float high = exp2_fast(fmaf(scores[2 * i + 1], scale_log2, -shift[row]));
    sum[row] += low + high;
    fragment[i] = pack(low, high);
  }
}
/*%/split%*/
/*%#split%*/
// Turns scores into exponentials, and adds them to the rows' sums: the block's own sum first, as for O. If
// all keys scored alike, each addition to a sum of many would round the same way.
template <int kScores>
__device__ __forceinline__ void exponentiate(SoftmaxRows& rows, float (&scores)[kScores]) {
  float sum[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int row = i / 2 % 2;
    scores[i] = exp2_fast(scores[i] - rows.shift[row]);
    sum[row] += scores[i];
  }
  rows.sum[0] += sum[0];
  rows.sum[1] += sum[1];
}
/*%/split%*/
