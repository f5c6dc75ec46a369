// Adds a step's dQ to sums in device memory.
#pragma once

#include "params/backward.h"
#include "parts/mma/backward_ds.cuh"
#include "parts/mma/backward_place.cuh"
#include "parts/mma/multiply_columns.cuh"
#include "ptx/ldmatrix_transposed.cuh"
#include "ptx/reduction_fragment.cuh"
#include "ptx/thread_index.cuh"

// dQ += dS K for the rows of tile m of a batch and head, numbered `pair`, and all keys of the CTA.
__device__ __forceinline__ void add_dq(unsigned ds_tile, unsigned k_tile, int pair, int m,
                                       const BackwardParams& params) {
  const int thread = thread_index(), warp = thread / 32, lane = thread % 32;
  // Where this warp's part begins: 16 * kDqRowTiles rows and kDqColumns columns.
  const int dq_row = warp % kDqWarpsM * 16 * kDqRowTiles, dq_column = warp / kDqWarpsM * kDqColumns;
  if (kDqIdle && dq_column >= kHeadDim) return;
  const unsigned ds_lane = ds_tile + TileDs::offset(lane % 8 + lane / 16 * 8, dq_row / 8 + lane / 8 % 2);
  const unsigned k_columns = k_tile + SharedTile<kHeadDim>::offset(lane % 16, dq_column / 8 + lane / 16);
  float sum[kDqRowTiles][kDqColumns / 2] = {};
#pragma unroll
  for (int step = 0; step < kTileN / 16; ++step) {
    unsigned ds[kDqRowTiles][4];
#pragma unroll
    for (int r = 0; r < kDqRowTiles; ++r) ldmatrix_transposed(ds[r], TileDs::step(ds_lane, 16 * step, 2 * r));
    multiply_columns<SharedTile<kHeadDim>, kDqColumns>(sum, ds, k_columns, 16 * step);
  }
  // The sums lie in blocks of 16 rows and 8 columns, one row of blocks after another.
  const long long row = static_cast<long long>(pair) * params.padded_q + m * kTileM + dq_row;
  float* const to = params.dq_sum + row * kHeadDim + dq_column * 16 + lane * kLaneSums;
#pragma unroll
  for (int r = 0; r < kDqRowTiles; ++r) {
#pragma unroll
    for (int i = 0; i < kDqColumns / 2; i += 4) {
      if (kHeadDim % kDqColumns != 0 && dq_column + 2 * i >= kHeadDim) break;
      add_fragment(to + 16 * r * kHeadDim + 32 * i, &sum[r][i]);
    }
  }
}
