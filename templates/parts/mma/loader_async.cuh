// Tiles from global to shared memory by cp.async, all threads of the CTA together.
#pragma once

#include "parts/mma/shared_tile.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/special.cuh"

// Neighbouring threads copy the neighbouring chunks of one row, as many as exchange places: reads of whole
// sectors, writes to different banks.
template <int kRows, int kColumns>
struct TileCopy {
  using Tile = SharedTile<kColumns>;
  static constexpr int kLanes = Tile::kSpan;
  static constexpr int kRowsPerPass = kThreads / kLanes;

  const char* source;   // this thread's first chunk in row 0 of the tensor
  long long row_bytes;  // from row to row
  int row, chunk;       // this thread's first in the tile

  // tensor: row 0 of the head, row_stride in elements.
  __device__ TileCopy(const void* tensor, long long row_stride) : row_bytes(row_stride * 2) {
    const int thread = thread_index();
    row = thread / kLanes;
    chunk = thread % kLanes;
    move_to(tensor);
  }

  // From now on that head's rows.
  __device__ void move_to(const void* tensor) {
    int first = row;
    asm volatile("" : "+r"(first));  // or its place in a head is held from one head to the next
    source = static_cast<const char*>(tensor) + first * row_bytes + chunk * 16;
    asm("" : "+l"(source));  // one pointer in registers, not what it is made of
  }

  // Starts the copy of rows first … first + kRows - 1. kGuarded: rows from end on are not there and become
  // zeros.
  template <bool kGuarded>
  __device__ void start(unsigned tile, int first, int end) const {
    const char* from = source + first * row_bytes;
    asm("" : "+l"(from));  // or the compiler holds source + pass_row * row_bytes of every pass in registers
#pragma unroll
    for (int pass_row = 0; pass_row < kRows; pass_row += kRowsPerPass) {
      const int r = row + pass_row;
      if (kRows % kRowsPerPass == 0 || r < kRows) {
        const bool there = !kGuarded || first + r < end;
#pragma unroll
        for (int c = 0; c < Tile::kChunks; c += kLanes) {
          const bool padding = (chunk + c) * 8 >= kColumns;
          /*%#one_place%*/
          // Eight rows or kSpan chunks further, what exchanges places is the same: one place serves them all.
          const unsigned to = kRowsPerPass % 8 == 0
                                  ? tile + Tile::offset(row, chunk) + pass_row * Tile::kPitch + c * 16
                                  : tile + Tile::offset(r, chunk + c);
          /*%/one_place%*/
          /*%^one_place%*/
          const unsigned to = tile + Tile::offset(r, chunk + c);
          /*%/one_place%*/
          if (kGuarded || kColumns % 16 != 0) {
            const bool wanted = there && !padding;
            cp_async_16(to, from + c * 16, wanted);
          } else {
            cp_async_16(to, from + c * 16);
          }
        }
      }
      from += kRowsPerPass * row_bytes;
    }
  }
};
