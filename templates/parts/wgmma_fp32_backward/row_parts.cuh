// A tile of query rows in the workspace: dO and Q, each as three tiles of bf16 whose sum it is, then LSE and
// delta. The kernel before makes them, so that numbers are split once, and not by each CTA that multiplies
// them; and they lie as they shall lie in shared memory.
#pragma once

#include "params/backward.h"
#include "parts/wgmma_fp32_backward/tiles.cuh"

struct RowParts {
  static constexpr int kRows = TileQK::kRows;

  // In this order, as bytes from the start of a tile:
  static constexpr int kDout = 0;
  static constexpr int kQ = TileV::kBytes;
  static constexpr int kLse = kQ + TileQK::kBytes;
  static constexpr int kDelta = kLse + kRows * sizeof(float);
  static constexpr int kBytes = kDelta + kRows * sizeof(float);
  static_assert(kBytes == kRowPartsBytes, "the host gives each tile so much of the workspace");

  // pair: the head's number, counted through all batches. tile: of its padded rows.
  __device__ __forceinline__ static unsigned char* of(const BackwardParams& params, int pair, int tile) {
    const int tiles = params.padded_q / kRows;
    return params.row_parts + (static_cast<long long>(pair) * tiles + tile) * kBytes;
  }
};
