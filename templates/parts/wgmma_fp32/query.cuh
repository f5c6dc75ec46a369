// A consumer's rows of Q, which take the softmax's scale: S comes out in units of log2, and scores that equal
// the shift weigh exactly 1.
#pragma once

#include "parts/mma/split.cuh"
#include "parts/warpgroup.cuh"
#include "parts/wgmma_fp32/layout.cuh"
#include "parts/wgmma_fp32/products.cuh"
#include "parts/wgmma_fp32/rows.cuh"
/*%#q_in_shared%*/
#include "parts/wgmma_fp32/split_copy.cuh"
#include "ptx/fence_async_shared.cuh"
#include "ptx/named_barrier.cuh"

// All parts, in shared memory.
__device__ __forceinline__ void store_query(unsigned tile, const Rows& rows, float scale, int warpgroup) {
  split_copy<TileQ, 64, kHeadDim, 128>(
      rows, tile, threadIdx.x % 128, [&](float x) { return x * scale; }, [] {});
  fence_async_shared();
  named_barrier_sync(1 + warpgroup, 128);
}
/*%/q_in_shared%*/
/*%#q_in_regs%*/

// The first parts, as fragments of A in registers: 16 rows of a warp.
__device__ __forceinline__ void load_query(unsigned (&q)[kQSteps][kQRegisterParts][4], const Rows& rows,
                                           float scale) {
  const int first_row = 16 * warp_of_warpgroup() + lane() / 4, first_column = lane() % 4 * 2;
#pragma unroll
  for (int step = 0; step < kQSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + i % 2 * 8, column = 16 * step + first_column + i / 2 * 8;
      float2 two{0, 0};
      if (rows.have(row) && (kHeadDim % 16 == 0 || column < kHeadDim))
        two = *reinterpret_cast<const float2*>(rows.at(row, column));
      unsigned parts[kParts];
      split(two.x * scale, two.y * scale, parts);
#pragma unroll
      for (int part = 0; part < kQRegisterParts; ++part) q[step][part][i] = parts[part];
    }
  }
}
/*%/q_in_regs%*/
