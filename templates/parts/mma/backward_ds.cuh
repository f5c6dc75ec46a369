// dS^T of a tile in shared memory.
#pragma once

#include "parts/mma/shared_tile.cuh"
/*%#stmatrix%*/
#include "ptx/stmatrix.cuh"
/*%/stmatrix%*/
/*%^stmatrix%*/
#include "ptx/store_shared.cuh"
/*%/stmatrix%*/

using TileDs = SharedTile<kTileM>;  // a row for each key

// Stores a fragment of the 16 keys from `key` on and the 16 query rows of `step`.
__device__ __forceinline__ void store_ds(unsigned ds_tile, const unsigned (&ds)[4], int key, int step,
                                         int lane) {
  /*%#stmatrix%*/
  stmatrix(ds_tile + TileDs::offset(key + lane % 16, 2 * step + lane / 16), ds[0], ds[1], ds[2], ds[3]);
  /*%/stmatrix%*/
  /*%^stmatrix%*/
#pragma unroll
  for (int f = 0; f < 4; ++f) {
    store_shared(ds_tile + TileDs::offset(key + f % 2 * 8 + lane / 4, 2 * step + f / 2) + lane % 4 * 4,
                 ds[f]);
  }
  /*%/stmatrix%*/
}
