// The end of a tile: O normalised and written, and the rows' log-sum-exp.
#pragma once

#include "params/forward.h"
#include "parts/mma/softmax.cuh"
#include "parts/mma/tile_order.cuh"
/*%#lse%*/
#include "ptx/infinity.cuh"
#include "ptx/math.cuh"
/*%/lse%*/
#include "ptx/shuffle.cuh"

// Writes a warp's 16 rows, from the head's row first_row on, and of these the columns from first_column on.
// The four lanes of a quad write 32 bytes of a row side by side. Whoever has the first column writes the LSE.
__device__ __forceinline__ void write_rows(const ForwardParams& params, const TileIndex& index, int first_row,
                                           int first_column, const SoftmaxRows& rows,
                                           const float (&output)[kHeadDimV / 2]) {
  const int lane = threadIdx.x % 32;
  float* const head =
      static_cast<float*>(params.o) + index.batch * params.o_batch + index.head * params.o_head;
  /*%#lse%*/
  float* const lse =
      params.lse + (static_cast<long long>(index.batch) * params.heads + index.head) * params.seqlen_q;
  /*%/lse%*/
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(rows.sum[half]);
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;  // a row that saw no key gives 0
    const int row = first_row + lane / 4 + 8 * half;
    if (row >= params.seqlen_q) continue;
    float* const to = head + row * params.o_row + first_column + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kHeadDimV / 8; ++i) {
      *reinterpret_cast<float2*>(to + 8 * i) =
          float2{output[4 * i + 2 * half] * inverse, output[4 * i + 2 * half + 1] * inverse};
    }
    /*%#lse%*/
    if (params.lse != nullptr && first_column == 0 && lane % 4 == 0)
      lse[row] = sum == 0.0f ? -kInfinity : (rows.shift[half] + log2f(sum)) * kLn2;
    /*%/lse%*/
  }
}
