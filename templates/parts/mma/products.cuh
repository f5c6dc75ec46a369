// S = Q K^T for one warp, from shared memory through mma. A warp holds kRowTiles accumulators of 16 rows;
// each fragment of K that it loads serves them all.
#pragma once

#include "parts/mma/fragment_lanes.cuh"
#include "parts/mma/shared_tile.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"

using TileQK = SharedTile<kHeadDim>;
using TileV = SharedTile<kHeadDimV>;

constexpr int kStepsQK = (kHeadDim + 15) / 16;  // of 16 columns of Q and K

// Loads the A fragments of 16 columns of the warp's rows of Q. q_lane, k_lane: where this lane starts to
// read.
__device__ __forceinline__ void load_q(unsigned (&q)[kRowTiles][4], unsigned q_lane, int step) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) ldmatrix(q[r], TileQK::step(q_lane, 16 * r, 2 * step));
}

// scores += Q K^T over 16 columns, for as many keys as there are scores.
template <int kScores>
__device__ __forceinline__ void multiply_qk(float (&scores)[kRowTiles][kScores],
                                            const unsigned (&q)[kRowTiles][4], unsigned k_lane, int step) {
#pragma unroll
  for (int j = 0; j < kScores / 8; ++j) {
    unsigned k[4];
    ldmatrix(k, TileQK::step(k_lane, 16 * j, 2 * step));
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      mma(&scores[r][8 * j], q[r], k[0], k[1]);
      mma(&scores[r][8 * j + 4], q[r], k[2], k[3]);
    }
  }
}
