// Tiles of rows from global to shared memory, 16 bytes per thread and step.
#pragma once

/*%#cp_async%*/
#include "ptx/cp_async.cuh"
#include "ptx/shared_address.cuh"
/*%/cp_async%*/

// Writes zeros where not inside. Without cp.async (before sm_80) the copy goes through registers and is done
// at once.
__device__ __forceinline__ void copy_16_bytes(float* to, const float* from, bool inside) {
  /*%#cp_async%*/
  cp_async_16(shared_address(to), from, inside);
  /*%/cp_async%*/
  /*%^cp_async%*/
  *reinterpret_cast<float4*>(to) = inside ? *reinterpret_cast<const float4*>(from) : float4{0, 0, 0, 0};
  /*%/cp_async%*/
}

// Makes a group of the tiles copied since the last call, to be waited for together.
__device__ __forceinline__ void commit_tiles() {
  /*%#cp_async%*/
  cp_async_commit();
  /*%/cp_async%*/
}

// Waits until all but the kPending latest groups of tiles have arrived, as far as this thread copies them.
template <int kPending>
__device__ __forceinline__ void wait_for_tiles() {
  /*%#cp_async%*/
  cp_async_wait<kPending>();
  /*%/cp_async%*/
}

// Copies kTileRows rows of kDim floats. Rows from rows_left on are zero: a masked key has weight 0, and 0
// times what happens to lie behind the tensor may be NaN. kGuarded is false where the tile is known to be
// whole.
template <int kTileRows, int kDim, int kStride, bool kGuarded>
__device__ __forceinline__ void copy_tile(float* to, const float* from, long long row_stride, int rows_left) {
  constexpr int kChunks = kDim / 4;
  constexpr int kRowsPerStep = kThreads / kChunks;
  const int row = threadIdx.x / unsigned{kChunks};
  const int column = threadIdx.x % unsigned{kChunks} * 4;
  to += row * kStride + column;
  from += row * row_stride + column;
  const bool works = kThreads % kChunks == 0 || row < kRowsPerStep;
#pragma unroll 8
  for (int step = 0; step < kTileRows; step += kRowsPerStep) {
    const bool in_tile = step + kRowsPerStep <= kTileRows || row + step < kTileRows;
    if (works && in_tile) copy_16_bytes(to, from, !kGuarded || row + step < rows_left);
    to += kRowsPerStep * kStride;
    from += kRowsPerStep * row_stride;
  }
}
