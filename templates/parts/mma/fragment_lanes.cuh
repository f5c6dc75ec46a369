// Where a lane starts to read the fragments of mma from a tile in shared memory.
#pragma once

#include "parts/mma/shared_tile.cuh"

// Where a lane finds its row of a fragment's four 8x8 matrices, which cover rows 0-15 of 16 columns. The
// matrices are counted rows first (A as it lies, B transposed).
template <class Tile>
__device__ __forceinline__ unsigned lane_offset_rows_first(unsigned lane) {
  return Tile::offset(lane % 16, lane / 16);
}

// Likewise with matrices counted columns first (B as it lies, two fragments of 8 rows; A transposed).
template <class Tile>
__device__ __forceinline__ unsigned lane_offset_columns_first(unsigned lane) {
  return Tile::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}
