// The end of a tile: O normalised, rounded and written through shared memory, and the rows' log-sum-exp.
#pragma once

#include "params/forward.h"
#include "parts/shared_tile.cuh"
#include "parts/softmax.cuh"
#include "ptx/convert.cuh"
#include "ptx/shared.cuh"

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
// Rounds a warp's 16 rows into shared memory.
template <int kOutputs>
__device__ __forceinline__ void stage_output(const float (&output)[kOutputs], unsigned tile, int first_row,
                                             int lane) {
#pragma unroll
  for (int i = 0; i < kOutputs; i += 4) {
    const unsigned column = lane % 4 * 4;  // bytes into the chunk
    const int row = first_row + lane / 4;
    store_shared(tile + SharedTile<kHeadDimV>::offset(row, i / 4) + column, pack(output[i], output[i + 1]));
    store_shared(tile + SharedTile<kHeadDimV>::offset(row + 8, i / 4) + column,
                 pack(output[i + 2], output[i + 3]));
  }
}

// Writes a warp's kRows staged rows to global memory, 16 bytes a lane; rows from end on are not there.
template <int kRows>
__device__ __forceinline__ void write_output(unsigned tile, int tile_row, char* output, long long row_bytes,
                                             int end, int lane) {
  constexpr int kLanes = SharedTile<kHeadDimV>::kSpan;  // on one row
  const int row = lane / kLanes, chunk = lane % kLanes;
  output += row * row_bytes + chunk * 16;
#pragma unroll
  for (int r = 0; r < kRows; r += 32 / kLanes) {
#pragma unroll
    for (int c = 0; c < SharedTile<kHeadDimV>::kChunks; c += kLanes) {
      const bool padding = (chunk + c) * 8 >= kHeadDimV;
      if (row + r < end && !padding) {
        *reinterpret_cast<uint4*>(output + c * 16) =
            load_shared_16(tile + SharedTile<kHeadDimV>::offset(tile_row + row + r, chunk + c));
      }
    }
    output += 32 / kLanes * row_bytes;
  }
}
