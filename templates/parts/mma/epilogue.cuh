// The end of a tile: O normalised and written, and the rows' log-sum-exp.
#pragma once

#include "params/forward.h"
#include "parts/mma/row_output.cuh"
#include "parts/mma/softmax.cuh"
#include "parts/mma/tile_order.cuh"
/*%#lse%*/
#include "ptx/infinity.cuh"
#include "ptx/log2.cuh"
/*%/lse%*/
#include "ptx/math.cuh"
#include "ptx/reciprocal.cuh"
#include "ptx/shuffle.cuh"
#include "ptx/thread_index.cuh"

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
// Writes a warp's rows of a tile. O goes through shared memory at `staging`, which has space for the tile and
// which no warp reads any more. There no warp touches another warp's rows, so the CTA need not synchronise.
__device__ __forceinline__ void write_tile(const ForwardParams& params, const TileIndex& index,
                                           SoftmaxRows (&rows)[kRowTiles],
                                           float (&output)[kRowTiles][kHeadDimV / 2], unsigned staging) {
  const int thread = thread_index(), lane = thread % 32;
  const int tile_row = thread / 32 * kRowsPerWarp;
  const int first_row = index.m * kTileM + tile_row;
  const int rows_left = params.seqlen_q - first_row;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    normalise(rows[r], output[r]);
    stage_rows<kHeadDimV>(output[r], staging, tile_row + 16 * r, 0, lane);
  }
  __syncwarp();
  char* const to = static_cast<char*>(params.o) +
                   2 * (index.batch * params.o_batch + index.head * params.o_head + first_row * params.o_row);
  write_rows<kHeadDimV, kRowsPerWarp>(staging, tile_row, to, 2 * params.o_row, rows_left, lane);
  /*%#lse%*/
  if (params.lse != nullptr && lane % 4 == 0) {
    float* const lse = params.lse +
                       (static_cast<long long>(index.batch) * params.heads + index.head) * params.seqlen_q +
                       first_row;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * r + 8 * half + lane / 4;
        if (row < rows_left) lse[row] = log_sum_exp(rows[r], half);
      }
    }
  }
  /*%/lse%*/
}
