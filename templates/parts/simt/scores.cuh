// Products of rows with rows, Q K^T, as outer products in registers.
#pragma once

#include "parts/simt/blocks.cuh"
#include "parts/simt/layout.cuh"

// Dims of a dot product that are summed by themselves before they join its sum so far. A sum that grows over
// all of head_dim rounds at its full size each time, and the weight of a large score shows that error. Blocks
// of 8 reduce the error to a third (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2), for
// one addition in nine.
constexpr int kBlock = 8;

// kCount numbers side by side of each of a thread's rows.
template <int kCount>
struct RowFragment {
  float at[kRows][kCount];

  __device__ __forceinline__ void load(const float* from, int row_stride) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) load_floats<kCount>(at[i], from + i * kRowLanes * row_stride);
  }
};

// Runs kSteps steps, each of which first loads a RowFragment and then computes with it. With kPrefetch the
// fragment of the next step is on its way while this one is computed: it takes registers, and hides the
// latency of shared memory.
template <int kCount, int kSteps, class Load, class Compute>
__device__ __forceinline__ void run_steps(Load load, Compute compute) {
  if constexpr (kPrefetch && kSteps % 2 == 0) {
    RowFragment<kCount> even, odd;
    load(even, 0);
#pragma unroll kUnroll
    for (int step = 0; step < kSteps; step += 2) {
      load(odd, step + 1);
      compute(even, step);
      load(even, step + 2 < kSteps ? step + 2 : 0);  // after the last step: loaded for nothing, but no branch
      compute(odd, step + 1);
    }
  } else {
#pragma unroll kUnroll
    for (int step = 0; step < kSteps; ++step) {
      RowFragment<kCount> fragment;
      load(fragment, step);
      compute(fragment, step);
    }
  }
}

// S = Q K^T for kRows x kKeys of the tile. Four columns of Q and K cost kRows + kKeys 128-bit loads and 4 *
// kRows * kKeys FMAs. Rows are padded by 16 bytes, so that lanes on neighbouring rows have no bank conflicts.
// kApart dims at a time are summed by themselves (kBlock).
template <int kDim, int kStride, int kApart = kBlock>
__device__ __forceinline__ void multiply_rows(float (&s)[kRows][kKeys], const float* q, const float* k,
                                              const Place& place) {
  q += place.row * kStride;
  k += place.key_lane * kStride;
  float lost[kRows][kKeys];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) s[i][j] = lost[i][j] = 0;
  }
  run_steps<kBlock, kDim / kBlock>(
      [&](RowFragment<kBlock>& a, int step) { a.load(q + kBlock * step, kStride); },
      [&](const RowFragment<kBlock>& a, int step) {
#pragma unroll
        for (int j = 0; j < kKeys; ++j) {
          float b[kBlock];
          load_floats<kBlock>(b, k + j * kLanes * kStride + kBlock * step);
#pragma unroll
          for (int first = 0; first < kBlock; first += kApart) {
            float block[kRows];
#pragma unroll
            for (int i = 0; i < kRows; ++i) block[i] = a.at[i][first] * b[first];
#pragma unroll
            for (int x = first + 1; x < first + kApart; ++x) {
#pragma unroll
              for (int i = 0; i < kRows; ++i) block[i] = fmaf(a.at[i][x], b[x], block[i]);
            }
#pragma unroll
            for (int i = 0; i < kRows; ++i) add_block(s[i][j], lost[i][j], block[i]);
          }
        }
      });
}
