// Copies a tile of fp32 from global to shared memory through a warpgroup's registers, and splits it on the
// way.
#pragma once

#include "parts/mma/split.cuh"
#include "parts/wgmma_fp32/layout.cuh"
#include "parts/wgmma_fp32/rows.cuh"
#include "ptx/store_shared_16.cuh"

// Stores the parts of 8 numbers, after `prepare` has been applied to each of them.
template <class Tile, class Prepare>
__device__ __forceinline__ void store_piece(unsigned tile, int piece, const float4 (&numbers)[2],
                                            const Prepare& prepare) {
  unsigned parts[4][kParts];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float4 four = numbers[half];
    split(prepare(four.x), prepare(four.y), parts[2 * half]);
    split(prepare(four.z), prepare(four.w), parts[2 * half + 1]);
  }
  const unsigned to = tile + Tile::offset(piece / Tile::kChunks, piece % Tile::kChunks);
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    store_shared(to + part * Tile::kPartBytes,
                 uint4{parts[0][part], parts[1][part], parts[2][part], parts[3][part]});
  }
}

// `wait` is called once the first loads are under way; it returns when the tile's place is free. Threads take
// pieces in their order, so that a warp reads whole lines, and eight threads write to all banks. Rows that do
// not exist become zeros.
template <class Tile, int kColumns, class Prepare, class Wait>
__device__ __forceinline__ void split_copy(const Rows& rows, unsigned tile, const Prepare& prepare,
                                           const Wait& wait) {
  // A thread has some pieces under way together, as many each time if that can be.
  constexpr int kPasses = (Tile::kPieces + 127) / 128, kBatches = (kPasses + 4) / 5;
  constexpr int kHeld = (kPasses + kBatches - 1) / kBatches;
  constexpr bool kWhole = Tile::kPieces == 128 * kHeld * kBatches;
  int first = static_cast<int>(threadIdx.x % 128);
#pragma unroll 1
  for (int batch = 0; batch < kBatches; ++batch) {
    float4 held[kHeld][2];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int piece = first + 128 * i, row = piece / Tile::kChunks, column = piece % Tile::kChunks * 8;
      held[i][0] = held[i][1] = float4{0, 0, 0, 0};
      if ((kWhole || row < Tile::kRows) && rows.have(row) && (kColumns % 16 == 0 || column < kColumns)) {
        const auto* const from = reinterpret_cast<const float4*>(rows.at(row, column));
        held[i][0] = from[0];
        held[i][1] = from[1];
      }
    }
    if (batch == 0) wait();
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int piece = first + 128 * i;
      if (kWhole || piece < Tile::kPieces) store_piece<Tile>(tile, piece, held[i], prepare);
    }
    first += 128 * kHeld;
  }
}
