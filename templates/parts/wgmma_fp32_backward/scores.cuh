// The products that S^T and dP^T come from.
#pragma once

#include "parts/wgmma_fp32_backward/layout.cuh"
#include "parts/wgmma_fp32_backward/products.cuh"
#include "ptx/pin.cuh"
#include "ptx/wgmma.cuh"

// This thread's part of A B^T, 64 x 64, as two sums: `high` of the products of both first parts, which are
// added one by one, rounded to nearest, and `low` of the others.
struct Scores {
  float high[32], low[32];

  // a_tile, b_tile: of 64 rows and kColumns columns. While a large product is added, tensor cores have the
  // small ones. All sums are made in the order of SplitSum::multiply_apart (parts/mma/split_sum.cuh), which
  // delta comes from.
  template <int kColumns>
  __device__ __forceinline__ void multiply(unsigned a_tile, unsigned b_tile) {
    const unsigned a = lower_half(a_tile), b = lower_half(b_tile);
#pragma unroll
    for (int i = 0; i < 32; ++i) high[i] = low[i] = 0;
    pin(low);
#pragma unroll
    for (int step = 0; step < (kColumns + 15) / 16; ++step) {
      const unsigned at = (step / 4 * TileQK::kPanelBytes + step % 4 * 32) / 16;
      float product[32];
      wgmma_high(product, a + at, b + at);
      wgmma_low(low, a + at, b + at);
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
