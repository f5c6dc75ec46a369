// Products of one warp through mma, of tiles in shared memory.
#pragma once

#include "parts/mma/fragment_lanes.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"

// product = A B^T over all columns of the two tiles, for 16 * kRowTiles rows of A and kN rows of B. a_lane
// and b_lane: where this lane starts to read, rows first in A and columns first in B.
template <class Tile, int kRowTiles, int kN>
__device__ __forceinline__ void multiply_rows(float (&product)[kRowTiles][kN / 2], unsigned a_lane,
                                              unsigned b_lane) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) product[r][i] = 0;
  }
#pragma unroll
  for (int step = 0; step < Tile::kChunks / 2; ++step) {
    unsigned a[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) ldmatrix(a[r], Tile::step(a_lane, 16 * r, 2 * step));
#pragma unroll
    for (int j = 0; j < kN / 16; ++j) {
      unsigned b[4];
      ldmatrix(b, Tile::step(b_lane, 16 * j, 2 * step));
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        mma(&product[r][8 * j], a[r], b[0], b[1]);
        mma(&product[r][8 * j + 4], a[r], b[2], b[3]);
      }
    }
  }
}
