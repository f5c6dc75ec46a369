// A warpgroup's sum of dV or dK: all of the CTA's keys.
#pragma once

#include "parts/warpgroup.cuh"
#include "parts/wgmma_fp32_backward/products.cuh"
#include "ptx/pin.cuh"
#include "ptx/wgmma.cuh"

// Columns from kFirst on, as many as one product has.
template <int kColumns, int kFirst>
constexpr int kAtOnce = kColumns - kFirst < kPanelColumns ? kColumns - kFirst : kPanelColumns;

// Begins part = A B for these columns of B.
template <int kColumns, int kFirst>
__device__ __forceinline__ void multiply_gradient(float (&part)[kAtOnce<kColumns, kFirst> / 2],
                                                  const unsigned (&a)[4][kParts][4], unsigned b_tile) {
  wgmma_gradient(part, a, lower_half(b_tile + kFirst / kPanelColumns * TileQK::kPanelBytes));
}

// Adds a part that is on its way, and those of the columns after it.
template <int kColumns, int kFirst>
__device__ __forceinline__ void add_gradient_from(float (&sum)[kColumns / 2],
                                                  float (&part)[kAtOnce<kColumns, kFirst> / 2],
                                                  const unsigned (&a)[4][kParts][4], unsigned b_tile) {
  constexpr int kNow = kAtOnce<kColumns, kFirst>, kNext = kFirst + kNow;
  const auto add = [&] {
    pin(part);
#pragma unroll
    for (int i = 0; i < kNow / 2; ++i) sum[kFirst / 2 + i] += part[i];
  };
  if constexpr (kNext < kColumns) {
    float next[kAtOnce<kColumns, kNext> / 2];
    multiply_gradient<kColumns, kNext>(next, a, b_tile);
    wgmma_wait<1>();
    add();
    add_gradient_from<kColumns, kNext>(sum, next, a, b_tile);
  } else {
    wgmma_wait<0>();
    add();
  }
}

// sum += A B. A step's part is summed by itself, since the sum is larger the more steps came before. While
// some columns are added, tensor cores have the next.
template <int kColumns>
__device__ __forceinline__ void add_gradient(float (&sum)[kColumns / 2], const unsigned (&a)[4][kParts][4],
                                             unsigned b_tile) {
  float part[kAtOnce<kColumns, 0> / 2];
  multiply_gradient<kColumns, 0>(part, a, b_tile);
  add_gradient_from<kColumns, 0>(sum, part, a, b_tile);
}

// Writes the sum, scaled, to the head's rows from first_row on; rows from `end` on do not exist. The four
// lanes of a quad write 32 bytes of a row side by side.
template <int kColumns>
__device__ __forceinline__ void write_gradient(const float (&sum)[kColumns / 2], float scale, float* head,
                                               long long row_stride, int first_row, int end) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + 16 * warp_of_warpgroup() + 8 * half + lane() / 4;
    if (row >= end) return;
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      *reinterpret_cast<float2*>(head + row * row_stride + 8 * i + lane() % 4 * 2) =
          float2{sum[4 * i + 2 * half] * scale, sum[4 * i + 2 * half + 1] * scale};
    }
  }
}
