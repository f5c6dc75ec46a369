// A tile of keys in the workspace: K and V, each as three tiles of bf16 whose sum it is, as they lie in
// shared memory. The kernel that owns keys writes them for the one that owns query rows.
#pragma once

#include "params/backward.h"
#include "parts/wgmma_fp32_backward/tiles.cuh"

struct KeyParts {
  // Bytes from the start of a tile.
  static constexpr int kK = 0;
  static constexpr int kV = kK + TileQK::kBytes;
  static constexpr int kBytes = kV + TileV::kBytes;
  static_assert(kBytes == kKeyPartsBytes, "the host gives each tile so much of the workspace");

  // pair: the K/V head's number, counted through all batches.
  __device__ __forceinline__ static unsigned char* of(const BackwardParams& params, int pair, int tile) {
    const int tiles = (params.seqlen_k + kTileN - 1) / kTileN;
    return params.key_parts + (static_cast<long long>(pair) * tiles + tile) * kBytes;
  }
};
