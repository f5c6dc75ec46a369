// dQ of a step of the backward pass over keys in fp32, summed in the workspace. All warps share it out: a
// warp has 16 rows, and every kDqSharers-th block of 16 columns.
#pragma once

#include "params/backward.h"
#include "parts/mma/backward_ds_split.cuh"
#include "parts/mma/fragment_lanes.cuh"
#include "parts/mma/split_sum.cuh"
#include "ptx/ldmatrix_transposed.cuh"
#include "ptx/reduction_fragment.cuh"
#include "ptx/thread_index.cuh"

constexpr int kDqSharers = kThreads / 32 / (kTileM / 16);  // warps that share rows

// dQ += dS K for the rows of tile m of a batch and head, numbered `pair`, and all keys of the CTA.
__device__ __forceinline__ void add_dq(unsigned shared, int pair, int m, const BackwardParams& params) {
  using Tile = SharedTile<kHeadDim>;
  const int thread = thread_index(), warp = thread / 32, lane = thread % 32;
  const int dq_row = warp / kDqSharers * 16;
  const unsigned ds_lane =
      shared + kOffsetDs + TileDs::offset(lane % 8 + lane / 16 * 8, dq_row / 8 + lane / 8 % 2);
  unsigned ds[kTileN / 16][kParts][4];
#pragma unroll
  for (int step = 0; step < kTileN / 16; ++step) {
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      ldmatrix_transposed(ds[step][part], ds_lane + step * kDsBytes + part * kDsPartBytes);
  }
  // The sums lie in blocks of 16 rows and 8 columns, one row of blocks after another.
  const long long row = static_cast<long long>(pair) * params.padded_q + m * kTileM + dq_row;
  float* const to = params.dq_sum + row * kHeadDim + lane * kLaneSums;
#pragma unroll 1
  for (int block = warp % kDqSharers; block < Tile::kChunks / 2; block += kDqSharers) {
    const unsigned k_lane = shared + Tile::offset(lane % 16, 2 * block + lane / 16);
    SplitSum<8> sum;
#pragma unroll
    for (int step = 0; step < kTileN / 16; ++step) {
      unsigned k[kParts][4];
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        ldmatrix_transposed(k[part], k_lane + (part * kTileN + 16 * step) * Tile::kPitch);
      sum.multiply(0, ds[step], k);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (kHeadDim % 16 != 0 && 16 * block + 8 * half >= kHeadDim) break;
      const float dq[4] = {sum.at(4 * half), sum.at(4 * half + 1), sum.at(4 * half + 2),
                           sum.at(4 * half + 3)};
      add_fragment(to + 256 * block + 128 * half, dq);
    }
  }
}
