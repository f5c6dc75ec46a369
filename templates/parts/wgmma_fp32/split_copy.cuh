// Copies a tile of fp32 from global to shared memory through registers, and splits it on the way.
#pragma once

#include "parts/mma/split_eight.cuh"
#include "parts/mma/split_store.cuh"
#include "parts/wgmma_fp32/rows.cuh"

// kRows rows of a tile, from the address `to` on, by kCopiers threads, of which this is one. `wait` is called
// once the first loads are under way; it returns when their place is free. Threads take pieces in their
// order, so that a warp reads whole lines, and eight threads write to all banks. Rows that do not exist
// become zeros, and so do columns up to kPadded: whole steps of wgmma, unless more are asked for.
template <class Tile, int kRows, int kColumns, int kCopiers, int kPadded = (kColumns + 15) / 16 * 16,
          class Prepare, class Wait>
__device__ __forceinline__ void split_copy(const Rows& rows, unsigned to, int thread, const Prepare& prepare,
                                           const Wait& wait) {
  // A thread has some pieces under way together, as many each time if that can be.
  constexpr int kChunks = kPadded / 8, kPieces = kRows * kChunks;  // of 8 numbers
  constexpr int kPasses = (kPieces + kCopiers - 1) / kCopiers, kBatches = (kPasses + 4) / 5;
  constexpr int kHeld = (kPasses + kBatches - 1) / kBatches;
  constexpr bool kWhole = kPieces == kCopiers * kHeld * kBatches;
  int first = thread;
#pragma unroll 1
  for (int batch = 0; batch < kBatches; ++batch) {
    float4 held[kHeld][2];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int piece = first + kCopiers * i, row = piece / kChunks, column = piece % kChunks * 8;
      held[i][0] = held[i][1] = float4{0, 0, 0, 0};
      if ((kWhole || row < kRows) && rows.have(row) && (kPadded == kColumns || column < kColumns)) {
        const auto* const from = reinterpret_cast<const float4*>(rows.at(row, column));
        held[i][0] = from[0];
        held[i][1] = from[1];
      }
    }
    if (batch == 0) wait();
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int piece = first + kCopiers * i;
      if (!kWhole && piece >= kPieces) continue;
      unsigned parts[4][kParts];
      split_eight(held[i], prepare, parts);
      store_parts(to + Tile::offset(piece / kChunks, piece % kChunks), Tile::kPartBytes, parts);
    }
    first += kCopiers * kHeld;
  }
}
