// Where a warp's fragments lie in a swizzled tile of 64 rows.
#pragma once
#include "parts/warpgroup.cuh"
#include "parts/wgmma/layout.cuh"

// Bytes from the start of a 64-row tile to this lane's 16 bytes of columns 16 * step .. 16 * step + 15, for
// ldmatrix and stmatrix of four 8x8 matrices: lanes 0-15 have the first eight columns of a warp's 16 rows,
// lanes 16-31 the others.
__device__ __forceinline__ unsigned fragment_offset(int step) {
  const int row = 16 * warp_of_warpgroup() + lane() % 16;
  const int piece = 2 * step + lane() / 16;
  return piece / 8 * (64 * kRowBytes) + row * kRowBytes + ((piece % 8 ^ row % 8) * 16);
}
