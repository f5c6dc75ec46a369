// Products of one warp through mma: of fragments in registers and a tile in shared memory, summed over the
// tile's rows.
#pragma once

#include "parts/mma/fragment_lanes.cuh"
#include "ptx/ldmatrix_transposed.cuh"
#include "ptx/mma.cuh"

// sum += A B over 16 columns of A, which meet rows first_row … first_row + 15 of B's tile. b_lane: where this
// lane starts to read, rows first.
template <class Tile, int kColumns, int kRowTiles>
__device__ __forceinline__ void multiply_columns(float (&sum)[kRowTiles][kColumns / 2],
                                                 const unsigned (&a)[kRowTiles][4], unsigned b_lane,
                                                 int first_row) {
#pragma unroll
  for (int j = 0; j < (kColumns + 15) / 16; ++j) {
    unsigned b[4];
    ldmatrix_transposed(b, Tile::step(b_lane, first_row, 2 * j));
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      mma(&sum[r][8 * j], a[r], b[0], b[1]);
      if (16 * j + 8 < kColumns) mma(&sum[r][8 * j + 4], a[r], b[2], b[3]);
    }
  }
}
