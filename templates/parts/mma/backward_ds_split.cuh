// The parts of dS^T in shared memory, 16 keys after 16 keys.
#pragma once

#include "parts/mma/shared_tile.cuh"
#include "parts/mma/split.cuh"
/*%#stmatrix%*/
#include "ptx/stmatrix.cuh"
/*%/stmatrix%*/
/*%^stmatrix%*/
#include "ptx/store_shared.cuh"
/*%/stmatrix%*/

using TileDs = SharedTile<kTileM>;  // a row for each key

constexpr int kDsPartBytes = 16 * TileDs::kPitch;  // of one part of 16 keys
constexpr int kDsBytes = kParts * kDsPartBytes;    // of all parts

// Stores a fragment of 16 keys and the 16 query rows from `row` on.
__device__ __forceinline__ void store_ds(unsigned ds_tile, const unsigned (&fragment)[kParts][4], int row,
                                         int lane) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const unsigned(&f)[4] = fragment[part];
    const unsigned to = ds_tile + part * kDsPartBytes;
    /*%#stmatrix%*/
    stmatrix(to + TileDs::offset(lane % 16, row / 8 + lane / 16), f[0], f[1], f[2], f[3]);
    /*%/stmatrix%*/
    /*%^stmatrix%*/
#pragma unroll
    for (int x = 0; x < 4; ++x)
      store_shared(to + TileDs::offset(x % 2 * 8 + lane / 4, row / 8 + x / 2) + lane % 4 * 4, f[x]);
    /*%/stmatrix%*/
  }
}
