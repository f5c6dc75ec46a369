// Tiles from global to shared memory through registers, for Turing, which has no cp.async: the loads are
// under way while the warp computes, and the stores follow.
#pragma once

#include "parts/shared_tile.cuh"
#include "ptx/shared.cuh"
#include "ptx/special.cuh"

// Neighbouring threads copy the neighbouring chunks of one row, as many as exchange places: reads of whole
// sectors, writes to different banks.
template <int kRows, int kColumns>
struct TileCopy {
  using Tile = SharedTile<kColumns>;
  static constexpr int kLanes = Tile::kSpan;
  static constexpr int kRowsPerPass = kThreads / kLanes;
  static constexpr int kPasses = (kRows + kRowsPerPass - 1) / kRowsPerPass;

  const char* source;    // this thread's first chunk in row 0 of the tensor
  long long row_stride;  // in elements
  unsigned target;       // the tile in shared memory that held belongs to
  uint4 held[kPasses][Tile::kChunks / kLanes];

  // This thread's first row and chunk in the tile.
  __device__ static int row() { return thread_index() / kLanes; }
  __device__ static int chunk() { return thread_index() % kLanes; }

  // tensor: row 0 of the head, row_stride in elements.
  __device__ TileCopy(const void* tensor, long long row_stride) : row_stride(row_stride) {
    source = static_cast<const char*>(tensor) + 2 * (row() * row_stride) + chunk() * 16;
    asm("" : "+l"(source));  // one pointer in registers, not what it is made of
  }

  // Loads rows first … first + kRows - 1. kGuarded: rows from end on are not there and become zeros.
  template <bool kGuarded>
  __device__ void start(unsigned tile, int first, int end) {
    target = tile;
    const char* from = source + 2 * (first * row_stride);
    asm("" : "+l"(from));
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int r = row() + pass * kRowsPerPass;
      const bool there = (kRows % kRowsPerPass == 0 || r < kRows) && (!kGuarded || first + r < end);
#pragma unroll
      for (int c = 0; c < Tile::kChunks; c += kLanes) {
        const bool padding = kColumns % 16 != 0 && (chunk() + c) * 8 >= kColumns;
        held[pass][c / kLanes] =
            there && !padding ? *reinterpret_cast<const uint4*>(from + c * 16) : uint4{0, 0, 0, 0};
      }
      from += 2 * kRowsPerPass * row_stride;
    }
  }

  // Stores what start loaded.
  __device__ void finish() const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int r = row() + pass * kRowsPerPass;
      if (kRows % kRowsPerPass == 0 || r < kRows) {
        const unsigned to = target + Tile::offset(r, chunk());
#pragma unroll
        for (int c = 0; c < Tile::kChunks; c += kLanes) store_shared(to + c * 16, held[pass][c / kLanes]);
      }
    }
  }
};
