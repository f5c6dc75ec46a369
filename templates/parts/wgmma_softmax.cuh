// Online softmax (FlashAttention-2, algorithm 1) of a warpgroup's scores, apart from O, which is in flight
// meanwhile: what O must be scaled by is kept for later. Layout of the scores: ptx/wgmma.cuh.
#pragma once
#include "ptx/math.cuh"
#include "ptx/shuffle.cuh"

// The two rows of a thread, 8 apart; four lanes share them.
struct SoftmaxState {
  float reference[2] = {-kInfinity,
                        -kInfinity};  // what is subtracted from the scores: the row's maximum, or near it
  float sum[2] = {0, 0};              // of this thread's exponentials
  float factor[2] = {1, 1};           // what O has to be scaled by
  bool moved = true;                  // some lane of the warp has a factor that is not 1
};

// Hides the columns from `first_hidden` on; counted, for each of the two rows, from this thread's first
// column.
__device__ __forceinline__ void mask_columns(float (&s)[kTileN / 2], int first_hidden0, int first_hidden1) {
#pragma unroll
  for (int j = 0; j < kTileN / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (8 * j + e >= first_hidden0) s[4 * j + e] = -kInfinity;
      if (8 * j + e >= first_hidden1) s[4 * j + 2 + e] = -kInfinity;
    }
  }
}

// The largest of the row's reference and this thread's scores of it, in kMaxChains chains that run side by
// side.
template <int kRow>
__device__ __forceinline__ float peak(const float (&s)[kTileN / 2], float reference) {
  float chain[kMaxChains];
#pragma unroll
  for (int i = 0; i < kTileN / 4; ++i) {
    const float score = s[i / 2 * 4 + 2 * kRow + i % 2];
    if (i == 0) {
      chain[0] = fmaxf(score, reference);
    } else {
      chain[i % kMaxChains] = i < kMaxChains ? score : fmaxf(chain[i % kMaxChains], score);
    }
  }
#pragma unroll
  for (int width = kMaxChains / 2; width > 0; width /= 2) {
#pragma unroll
    for (int i = 0; i < width; ++i) chain[i] = fmaxf(chain[i], chain[i + width]);
  }
  return chain[0];
}

// Scores become exponentials in place. kMayBeEmpty: a row may have seen no key yet.
template <bool kMayBeEmpty>
__device__ __forceinline__ void softmax(float (&s)[kTileN / 2], SoftmaxState& rows, float scale_log2) {
  const float peaks[2] = {peak<0>(s, rows.reference[0]), peak<1>(s, rows.reference[1])};
  /*%#lazy%*/
  // The reference stays while no score exceeds it by more than 2^kLazy: O, the sum and P share the factor,
  // and all are floating point, so nothing is lost. Each thread asks for its own scores and the warp votes:
  // no shuffles.
  rows.moved = __any_sync(0xffffffffu, (peaks[0] - rows.reference[0]) * scale_log2 > kLazy ||
                                           (peaks[1] - rows.reference[1]) * scale_log2 > kLazy);
  if (rows.moved)
  /*%/lazy%*/
  {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float reference = quad_max(peaks[row]);
      const float finite = kMayBeEmpty && reference == -kInfinity ? 0.0f : reference;
      rows.factor[row] = exp2_fast((rows.reference[row] - finite) * scale_log2);
      rows.sum[row] *= rows.factor[row];
      rows.reference[row] = reference;
    }
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const bool empty = kMayBeEmpty && rows.reference[row] == -kInfinity;
    const float shift = empty ? 0.0f : rows.reference[row] * scale_log2;
    float odd = 0;
#pragma unroll
    for (int j = 0; j < kTileN / 8; ++j) {
      float& even_score = s[4 * j + 2 * row];
      float& odd_score = s[4 * j + 2 * row + 1];
      even_score = exp2_fast(even_score * scale_log2 - shift);
      odd_score = exp2_fast(odd_score * scale_log2 - shift);
      rows.sum[row] += even_score;
      odd += odd_score;
    }
    rows.sum[row] += odd;
  }
}

// Applies what softmax() kept for O.
__device__ __forceinline__ void rescale(float (&o)[kHeadDimV / 2], const SoftmaxState& rows) {
  /*%#lazy%*/
  if (!rows.moved) return;
/*%/lazy%*/
#pragma unroll
  for (int i = 0; i < kHeadDimV / 2; ++i) o[i] *= rows.factor[i / 2 % 2];
}
