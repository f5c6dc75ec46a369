// A block's softmax for the kRowTiles accumulators of a warp, and the product that follows it.
#pragma once

/*%^optimistic%*/
#include "parts/mma/multiply_columns.cuh"
/*%/optimistic%*/
#include "parts/mma/products.cuh"
#include "parts/mma/softmax.cuh"

// Moves the shifts of all the warp's rows if any of them is outgrown.
template <int kScores>
__device__ __forceinline__ void raise(SoftmaxRows (&rows)[kRowTiles],
                                      float (&output)[kRowTiles][kHeadDimV / 2],
                                      const float (&scores)[kRowTiles][kScores], float scale_log2) {
  float peak[kRowTiles][2];
  bool move = false;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    find_peaks(scores[r], peak[r]);
    move |= outgrown(rows[r], peak[r], scale_log2);
  }
  if (__any_sync(0xffffffffu, move)) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) move_shift(rows[r], peak[r], output[r], scale_log2);
  }
}

/*%^optimistic%*/
// O += P V, where P follows from the scores with the shifts as they are.
template <int kScores>
__device__ __forceinline__ void add_pv(SoftmaxRows (&rows)[kRowTiles],
                                       float (&output)[kRowTiles][kHeadDimV / 2],
                                       const float (&scores)[kRowTiles][kScores], unsigned v_lane,
                                       float scale_log2) {
#pragma unroll
  for (int i = 0; i < kScores / 8; ++i) {
    unsigned p[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
      exponentiate(rows[r].shift, &scores[r][8 * i], p[r], rows[r].sum, scale_log2);
    multiply_columns<TileV, kHeadDimV>(output, p, v_lane, 16 * i);
  }
}
/*%/optimistic%*/
