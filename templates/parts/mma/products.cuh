// The two products of attention for one warp, from shared memory through mma: S = Q K^T and O += P V. A warp
// holds kRowTiles accumulators of 16 rows; each fragment of K and V that it loads serves them all.
#pragma once

#include "parts/mma/fragment_lanes.cuh"
#include "parts/mma/shared_tile.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/ldmatrix_transposed.cuh"
#include "ptx/mma.cuh"

using TileQK = SharedTile<kHeadDim>;
using TileV = SharedTile<kHeadDimV>;

constexpr int kStepsQK = (kHeadDim + 15) / 16;  // of 16 columns of Q and K

// The A fragments of 16 columns of the warp's rows of Q. q_lane: where this lane starts, here and below.
__device__ __forceinline__ void load_q(unsigned (&q)[kRowTiles][4], unsigned q_lane, int step) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) ldmatrix(q[r], TileQK::step(q_lane, 16 * r, 2 * step));
}

// scores += Q K^T over 16 columns and as many keys as there are scores for.
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

// output += P V over the step-th 16 keys, all columns.
__device__ __forceinline__ void multiply_pv(float (&output)[kRowTiles][kHeadDimV / 2],
                                            const unsigned (&p)[kRowTiles][4], unsigned v_lane, int step) {
#pragma unroll
  for (int j = 0; j < TileV::kChunks / 2; ++j) {
    unsigned v[4];
    ldmatrix_transposed(v, TileV::step(v_lane, 16 * step, 2 * j));
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      mma(&output[r][8 * j], p[r], v[0], v[1]);
      if (16 * j + 8 < kHeadDimV) mma(&output[r][8 * j + 4], p[r], v[2], v[3]);
    }
  }
}
