// Copies tiles of fp32 from global to shared memory through registers, and splits them on the way: the loads
// are under way while the warp computes, and the stores of the parts follow.
#pragma once

#include "parts/mma/head_of_fp32.cuh"
#include "parts/mma/shared_tile.cuh"
#include "parts/mma/split_eight.cuh"
#include "parts/mma/split_store.cuh"
#include "ptx/thread_index.cuh"

// In shared memory a tile is one tile of bf16 for each part, the first part's first. kLanes threads copy each
// row and take turns at its pieces of 8 elements, each of which is a chunk of every part. Where eight threads
// have rows that begin in the same bank, each row is begun at another piece, so that the eight threads write
// to all banks.
template <int kRows, int kColumns>
struct SplitCopy {
  using Tile = SharedTile<kColumns>;
  static_assert(kThreads % kRows == 0, "threads divide into rows");
  static constexpr int kLanes = kThreads / kRows;
  static constexpr int kPasses = (Tile::kChunks + kLanes - 1) / kLanes;
  static constexpr int kPartBytes = kRows * Tile::kPitch;
  // Rows of different phases begin with different passes, where these come in whole turns.
  static constexpr int kTurn = Tile::kSpan > kLanes ? Tile::kSpan / kLanes : 1;
  static constexpr int kBeginnings = kPasses % kTurn == 0 ? kTurn : 1;

  const float* source;   // row 0 of the head
  long long row_stride;  // in elements
  float4 held[kPasses][2];

  __device__ SplitCopy(const float* source, long long row_stride) : source(source), row_stride(row_stride) {}

  // Loads rows first … first + kRows - 1; rows from `end` on do not exist and become zeros.
  __device__ void start(int first, int end) {
    const int thread = thread_index(), row = thread / kLanes;
    const bool inside = first + row < end;
    const auto* const from = reinterpret_cast<const float4*>(source + (first + row) * row_stride);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int piece = piece_of(row, thread % kLanes, pass);
      held[pass][0] = held[pass][1] = float4{0, 0, 0, 0};
      if (inside && is_there<kColumns / 8>(piece)) {
        held[pass][0] = from[2 * piece];
        held[pass][1] = from[2 * piece + 1];
      }
    }
  }

  // Stores the parts of the numbers that `start` loaded, after `prepare` has been applied to each number.
  template <class Prepare>
  __device__ void finish(unsigned tile, const Prepare& prepare) const {
    const int thread = threadIdx.x, row = thread / kLanes;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      unsigned parts[4][kParts];
      split_eight(held[pass], prepare, parts);
      const int piece = piece_of(row, thread % kLanes, pass);
      if (!is_there<Tile::kChunks>(piece)) continue;
      store_parts(tile + Tile::offset(row, piece), kPartBytes, parts);
    }
  }

 private:
  __device__ static int piece_of(int row, int lane, int pass) {
    return lane + kLanes * (pass ^ Tile::phase(row) % kBeginnings);
  }

  // Whether a row of kPieces pieces has this piece.
  template <int kPieces>
  __device__ static bool is_there(int piece) {
    return kPasses * kLanes == kPieces || piece < kPieces;
  }
};
