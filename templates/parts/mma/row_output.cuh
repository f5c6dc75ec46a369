// Writes accumulators to global memory: rounded, and through shared memory, so that whole chunks of rows are
// written.
#pragma once

#include "parts/mma/shared_tile.cuh"
#include "ptx/convert.cuh"
#include "ptx/load_shared_16.cuh"
#include "ptx/store_shared.cuh"

// Rounds a warp's 16 rows and stores them to shared memory, from chunk first_chunk of each row on.
template <int kColumns, int kOutputs>
__device__ __forceinline__ void stage_rows(const float (&output)[kOutputs], unsigned tile, int first_row,
                                           int first_chunk, int lane) {
#pragma unroll
  for (int i = 0; i < kOutputs; i += 4) {
    const unsigned column = lane % 4 * 4;  // in bytes, within the chunk
    const int row = first_row + lane / 4;
    store_shared(tile + SharedTile<kColumns>::offset(row, first_chunk + i / 4) + column,
                 pack(output[i], output[i + 1]));
    store_shared(tile + SharedTile<kColumns>::offset(row + 8, first_chunk + i / 4) + column,
                 pack(output[i + 2], output[i + 3]));
  }
}

// Writes a warp's kRows staged rows to global memory, 16 bytes per lane; rows from `end` on do not exist.
template <int kColumns, int kRows>
__device__ __forceinline__ void write_rows(unsigned tile, int tile_row, char* output, long long row_bytes,
                                           int end, int lane) {
  constexpr int kLanes = SharedTile<kColumns>::kSpan;  // per row
  const int row = lane / kLanes, chunk = lane % kLanes;
  output += row * row_bytes + chunk * 16;
#pragma unroll
  for (int r = 0; r < kRows; r += 32 / kLanes) {
#pragma unroll
    for (int c = 0; c < SharedTile<kColumns>::kChunks; c += kLanes) {
      const bool padding = (chunk + c) * 8 >= kColumns;
      if (row + r < end && !padding) {
        *reinterpret_cast<uint4*>(output + c * 16) =
            load_shared_16(tile + SharedTile<kColumns>::offset(tile_row + row + r, chunk + c));
      }
    }
    output += 32 / kLanes * row_bytes;
  }
}
