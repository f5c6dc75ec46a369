// Copies tiles from global to shared memory through registers, for Turing, which has no cp.async: the loads
// are under way while the warp computes, and the stores follow.
#pragma once

#include "parts/mma/shared_tile.cuh"
#include "ptx/store_shared_16.cuh"
#include "ptx/thread_index.cuh"

// Threads take the tile's chunks in order, kThreads at a time.
template <int kRows, int kColumns>
struct TileCopy {
  using Tile = SharedTile<kColumns>;
  static constexpr int kPieces = kRows * Tile::kChunks;  // of 16 bytes
  static constexpr int kPasses = (kPieces + kThreads - 1) / kThreads;

  const char* source;    // row 0 of the tensor
  long long row_stride;  // in elements
  unsigned target;       // the tile in shared memory that `held` goes to
  uint4 held[kPasses];

  // tensor: row 0 of the head, row_stride in elements.
  __device__ TileCopy(const void* tensor, long long row_stride)
      : source(static_cast<const char*>(tensor)), row_stride(row_stride) {}

  // Loads rows first … first + kRows - 1. kGuarded: rows from `end` on do not exist and become zeros.
  template <bool kGuarded>
  __device__ void start(unsigned tile, int first, int end) {
    target = tile;
    const int thread = thread_index();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int piece = thread + pass * kThreads;
      const int row = first + piece / Tile::kChunks, chunk = piece % Tile::kChunks;
      const bool inside = kPieces % kThreads == 0 || piece < kPieces;
      const bool padding = kColumns % 16 != 0 && chunk * 8 >= kColumns;
      held[pass] = uint4{0, 0, 0, 0};
      if (inside && !padding && (!kGuarded || row < end))
        held[pass] = *reinterpret_cast<const uint4*>(source + 2 * (row * row_stride) + chunk * 16);
    }
  }

  // Stores what `start` loaded.
  __device__ void finish() const {
    const int thread = thread_index();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int piece = thread + pass * kThreads;
      if (kPieces % kThreads == 0 || piece < kPieces)
        store_shared(target + Tile::offset(piece / Tile::kChunks, piece % Tile::kChunks), held[pass]);
    }
  }
};
