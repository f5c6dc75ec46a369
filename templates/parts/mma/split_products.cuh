// Products of one warp's 16 rows in fp32, of tiles that lie in shared memory in parts, part after part.
#pragma once

#include "parts/mma/fragment_lanes.cuh"
#include "parts/mma/shared_tile.cuh"
#include "parts/mma/split_sum.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/ldmatrix_transposed.cuh"

using TileQK = SharedTile<kHeadDim>;
using TileV = SharedTile<kHeadDimV>;

// sum = A B^T over all columns of two tiles of kRowsA and kRowsB rows, for 16 rows of A and kRows rows of B.
// a_lane, b_lane: where this lane starts to read the first part, rows first in A and columns first in B.
template <class Tile, int kRowsA, int kRowsB, int kRows>
__device__ __forceinline__ void multiply_rows(SplitSum<kRows / 2>& sum, unsigned a_lane, unsigned b_lane) {
#pragma unroll
  for (int step = 0; step < Tile::kChunks / 2; ++step) {
    unsigned a[kParts][4];
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      ldmatrix(a[part], Tile::step(a_lane + part * kRowsA * Tile::kPitch, 0, 2 * step));
#pragma unroll
    for (int j = 0; j < kRows / 16; ++j) {
      unsigned b[kParts][4];
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        ldmatrix(b[part], Tile::step(b_lane + part * kRowsB * Tile::kPitch, 16 * j, 2 * step));
      /*%#apart%*/
      sum.multiply_apart(8 * j, a, b);
      /*%/apart%*/
      /*%^apart%*/
      sum.multiply(8 * j, a, b);
      /*%/apart%*/
    }
  }
}

// output += A B for all rows of B's tile, and every kEvery-th block of 16 of its columns from `first` on.
// b_lane: where this lane starts to read the first part of that block, rows first. The tile's part is summed
// by itself, since the output is larger the more tiles came before.
template <int kColumns, int kEvery, int kSteps, int kOutputs>
__device__ __forceinline__ void add_columns(float (&output)[kOutputs], const unsigned (&a)[kSteps][kParts][4],
                                            unsigned b_lane, int first) {
  using Tile = SharedTile<kColumns>;
  constexpr int kBlocks = Tile::kChunks / 2;
#pragma unroll
  for (int j = 0; j < (kBlocks + kEvery - 1) / kEvery; ++j) {
    if (kBlocks % kEvery != 0 && first + kEvery * j >= kBlocks) break;
    SplitSum<8> sum;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      unsigned b[kParts][4];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        ldmatrix_transposed(
            b[part], Tile::step(b_lane + part * 16 * kSteps * Tile::kPitch, 16 * step, 2 * kEvery * j));
      }
      sum.multiply(0, a[step], b);
    }
#pragma unroll
    for (int i = 0; i < 8 && 8 * j + i < kOutputs; ++i) output[8 * j + i] += sum.at(i);
  }
}
