// Online softmax (FlashAttention-2, algorithm 1) of a warpgroup's scores, apart from O, which is in flight
// meanwhile: what O must be scaled by is kept for later.
#pragma once
#include "parts/unset_shift.cuh"
#include "parts/wgmma/output_registers.cuh"
#include "parts/wgmma/score_registers.cuh"
/*%#optimistic%*/
#include "ptx/log2.cuh"
/*%/optimistic%*/
#include "ptx/math.cuh"
/*%#optimistic%*/
#include "ptx/reciprocal.cuh"
/*%/optimistic%*/
#include "ptx/shuffle.cuh"

// The two rows of a thread, 8 apart; four lanes share them.
struct SoftmaxState {
  // Exponentials are exp2(scale_log2 * score - shift), where shift is the row's scaled maximum, or near it.
  float shift[2] = {kUnset, kUnset};
  float sum[2] = {0, 0};     // of this thread's exponentials
  float factor[2] = {1, 1};  // what O still has to be scaled by
  /*%#lazy%*/
  bool moved = true;  // some lane of the warp may have a factor that is not 1
  /*%/lazy%*/
};

/*%#above_peaks%*/
// Moves the shifts above the rows' maxima, so that scores that grow by less need no further move, scales the
// sums and keeps the factors for O.
/*%/above_peaks%*/
/*%^above_peaks%*/
// Moves the shifts to the rows' maxima, scales the sums and keeps the factors for O.
/*%/above_peaks%*/
__device__ __forceinline__ void follow_peaks(SoftmaxState& rows, float scale_log2) {
  float peaks[2];
  find_peaks(peaks);
  peaks[0] *= scale_log2;
  peaks[1] *= scale_log2;
  /*%#lazy%*/
  // A shift stays while no scaled score exceeds it by more than kLazy, so that no exponential exceeds
  // 2^kLazy. O, the sum and P share the factor, and all are floating point, so nothing is lost of values
  // below 2^100. Each thread checks its own scores and the warp votes: no shuffles.
  rows.moved = __any_sync(0xffffffffu, peaks[0] - rows.shift[0] > kLazy || peaks[1] - rows.shift[1] > kLazy);
  if (!rows.moved) return;
/*%/lazy%*/
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    /*%#above_peaks%*/
    const float shift = fmaxf(rows.shift[row], quad_max(peaks[row]) + kHeadroom);
    /*%/above_peaks%*/
    /*%^above_peaks%*/
    const float shift = fmaxf(rows.shift[row], quad_max(peaks[row]));
    /*%/above_peaks%*/
    rows.factor[row] = exp2_fast(rows.shift[row] - shift);
    rows.sum[row] *= rows.factor[row];
    rows.shift[row] = shift;
  }
}

// Adds a block's sums to those of the rows.
__device__ __forceinline__ void add(float (&sum)[2], const float (&of_block)[2]) {
  sum[0] += of_block[0];
  sum[1] += of_block[1];
}

/*%#optimistic%*/
// Whether in some lane of the warp the sum of a row's exponentials is too large for the row's shift to stay …
__device__ __forceinline__ bool has_outgrown(const float (&sum)[2]) {
  return __any_sync(0xffffffffu, !(sum[0] <= kLargestSum && sum[1] <= kLargestSum));
}

// … or so large that exponentials overflowed, or nearly did.
__device__ __forceinline__ bool are_lost(const float (&sum)[2]) {
  return __any_sync(0xffffffffu, !(sum[0] < kLostSum && sum[1] < kLostSum));
}

/*%#fp16%*/
// What the largest of a row's lane sums becomes when its shift moves and n keys are left. The lower it is,
// the longer the shift can stay after that. fp16 rounds exponentials below 2^-14 by up to 2^-25, n times at
// most, which stays within half an ulp of a sum of n * 2^-13. (It is a power of two, so that P of a key that
// outweighs all others is one, too, and rounds nothing.)
__device__ __forceinline__ float sum_after_move(int keys_left) {
  const unsigned power = __float_as_uint(static_cast<float>(keys_left)) & 0x7f800000u;  // more than n / 2
  return fminf(__uint_as_float(power) * 0x1p-12f, 1.0f);
}
/*%/fp16%*/
/*%^fp16%*/
// What the largest of a row's lane sums becomes when its shift moves, however many keys are left.
__device__ __forceinline__ float sum_after_move(int) {
  return kSumAfterMove;
}
/*%/fp16%*/

// Factors for rows whose exponentials were taken against a shift far below their maximum: the larger of the
// row's largest lane sum and a power of two near its sum so far becomes `after`, to within fp32's last bits.
// (Where one key outweighs all others, its exponential is its lane's sum, and P rounds as little as the
// textbook's 1.)
__device__ __forceinline__ void choose_factors(const SoftmaxState& rows, const float (&sum)[2], float after,
                                               float (&factor)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float before = __uint_as_float(__float_as_uint(rows.sum[row]) & 0x7f800000u);  // its power of two
    factor[row] = after * reciprocal_fast(fmaxf(quad_max(fmaxf(sum[row], before)), after));
  }
}

// Moves rows: their shifts, their sums and their exponentials. All sixteen rows of a warp move together,
// since what grew in one soon will in the others.
__device__ __forceinline__ void shrink(SoftmaxState& rows, float (&sum)[2], const float (&factor)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    rows.factor[row] = factor[row];
    rows.shift[row] -= log2_fast(factor[row]);
    rows.sum[row] *= factor[row];
    sum[row] *= factor[row];
  }
  scale_exponentials(factor);
}
/*%/optimistic%*/

// Scales O by the factors kept for it.
__device__ __forceinline__ void rescale(const SoftmaxState& rows) {
  /*%#lazy%*/
  if (!rows.moved) return;
  /*%/lazy%*/
  scale_output(rows.factor);
}

/*%#settles%*/
// No factor is kept for O any more.
__device__ __forceinline__ void settle(SoftmaxState& rows) {
  /*%#lazy%*/
  rows.moved = false;
  /*%/lazy%*/
  /*%^lazy%*/
  rows.factor[0] = rows.factor[1] = 1;
  /*%/lazy%*/
}
/*%/settles%*/
