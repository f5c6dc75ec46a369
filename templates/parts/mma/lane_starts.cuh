// Where lanes start to read their warp's rows of Q, and tiles of K and V: for kernels that work this out anew
// in each step.
#pragma once

#include "parts/mma/fragment_lanes.cuh"
#include "parts/mma/products.cuh"

__device__ __forceinline__ unsigned start_q(unsigned q_tile, unsigned thread) {
  return q_tile + thread / 32 * kRowsPerWarp * TileQK::kPitch + lane_offset_rows_first<TileQK>(thread % 32);
}
__device__ __forceinline__ unsigned start_k(unsigned k_tile, unsigned thread) {
  return k_tile + lane_offset_columns_first<TileQK>(thread % 32);
}
__device__ __forceinline__ unsigned start_v(unsigned v_tile, unsigned thread) {
  return v_tile + lane_offset_rows_first<TileV>(thread % 32);
}
