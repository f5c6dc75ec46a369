// Where a warp's keys lie in a gradient of the backward pass over keys.
#pragma once

#include "params/backward.h"
#include "parts/mma/backward_key_tile.cuh"
#include "parts/mma/backward_place.cuh"

// The first key that the warp writes, and the number of keys from there to the end.
struct OwnKeys {
  char* first;
  int count;
};

// Worked out at the end of the kernel, from the tile's number: no registers hold it until then.
__device__ __forceinline__ OwnKeys own_keys(const BackwardParams& params, void* gradient, long long batch,
                                            long long head, long long row) {
  const KeyTile own = key_tile_of_block(params);
  const Place at;
  const int first = own.n * kTileN + at.first_key + at.part * 8 * kRowTiles;
  return {static_cast<char*>(gradient) + 2 * (own.batch * batch + own.head * head + first * row),
          params.seqlen_k - first};
}
