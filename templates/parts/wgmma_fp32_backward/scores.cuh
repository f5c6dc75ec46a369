// The products that S^T and dP^T come from.
#pragma once

#include "parts/wgmma_fp32_backward/products.cuh"
#include "parts/wgmma_fp32_backward/tiles.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/pin.cuh"
#include "ptx/thread_index.cuh"
#include "ptx/wgmma.cuh"

// The first part of a tile of 64 rows, in registers: each step reads it three times.
template <int kColumns>
struct FirstPart {
  static constexpr int kSteps = (kColumns + 15) / 16;
  unsigned fragments[kSteps][4];

  __device__ __forceinline__ explicit FirstPart(unsigned tile) {
    const int thread = thread_index() % 128, row = thread / 32 * 16 + thread % 16;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      ldmatrix(fragments[step], tile + SplitTile<64, kColumns>::offset(row, 2 * step + thread % 32 / 16));
  }
};

// This thread's part of A B^T, 64 x 64, as two sums: `high` of the products of both first parts, which are
// added one by one, rounded to nearest, and `low` of the others.
struct Scores {
  float high[32], low[32];

  // a_tile, b_tile: of 64 rows and kColumns columns. While a large product is added, tensor cores have the
  // small ones. All sums are made in the order of SplitSum::multiply_apart (parts/mma/split_sum.cuh), which
  // delta comes from.
  template <int kColumns>
  __device__ __forceinline__ void multiply(const FirstPart<kColumns>& first, unsigned a_tile,
                                           unsigned b_tile) {
    const unsigned a = lower_half(a_tile), b = lower_half(b_tile);
#pragma unroll
    for (int i = 0; i < 32; ++i) high[i] = low[i] = 0;
    pin(low);
#pragma unroll
    for (int step = 0; step < FirstPart<kColumns>::kSteps; ++step) {
      const unsigned at = (step / 4 * TileQK::kPanelBytes + step % 4 * 32) / 16;
      float product[32];
      wgmma_high(product, first.fragments[step], b + at);
      wgmma_low(low, first.fragments[step], a + at, b + at);
      wgmma_wait<1>();
      pin(product);
#pragma unroll
      for (int i = 0; i < 32; ++i) high[i] += product[i];
    }
    wgmma_wait<0>();
    pin(low);
  }

  __device__ __forceinline__ float at(int i) const {
    return high[i] + low[i];
  }
};
