// Tiles from global to shared memory by cp.async, all threads of the CTA together.
#pragma once

#include "parts/mma/shared_tile.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/special.cuh"

// Neighbouring threads copy the neighbouring chunks of one row, as many as exchange places: reads of whole
// sectors, writes to different banks. Where two do, those would be sectors of sixteen rows, and a look-up in
// L1 for each; there threads take whole rows, if that makes at most twice as many copies of a thread.
template <int kRows, int kColumns>
struct TileCopy {
  using Tile = SharedTile<kColumns>;
  // Rows that fit, a chunk a thread. Of each eight the chunks of the last four exchange places.
  static constexpr int kFit = kThreads / Tile::kChunks;
  /*%#one_place%*/
  static constexpr int kFitting = kFit >= 8 ? kFit / 8 * 8 : kFit / 4 * 4;
  /*%/one_place%*/
  /*%^one_place%*/
  static constexpr int kFitting = kFit / 4 * 4;
  /*%/one_place%*/
  static constexpr int kCopies =
      (kRows * Tile::kSpan + kThreads - 1) / kThreads * Tile::kChunks / Tile::kSpan;
  static constexpr bool kWholeRows = Tile::kSpan == 2 && Tile::kPitch >= 128 && kFitting > 0 &&
                                     kRows <= 2 * (kCopies * kFitting);
  static constexpr int kLanes = kWholeRows ? Tile::kChunks : Tile::kSpan;
  static constexpr int kRowsPerPass = kWholeRows ? kFitting : kThreads / kLanes;

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
    if (kWholeRows && row >= kRowsPerPass) return;  // no chunk is left for this thread
    const char* from = source + first * row_bytes;
    asm("" : "+l"(from));  // or the compiler holds source + pass_row * row_bytes of every pass in registers
#pragma unroll
    for (int pass_row = 0; pass_row < kRows; pass_row += kRowsPerPass) {
      const int r = row + pass_row;
      if (pass_row + kRowsPerPass <= kRows || r < kRows) {
        const bool there = !kGuarded || first + r < end;
#pragma unroll
        for (int c = 0; c < Tile::kChunks; c += kLanes) {
          const bool padding = (chunk + c) * 8 >= kColumns;
          /*%#one_place%*/
          constexpr bool kOnePlace = kWholeRows || kRowsPerPass % 8 == 0;
          /*%/one_place%*/
          /*%^one_place%*/
          constexpr bool kOnePlace = kWholeRows;
          /*%/one_place%*/
          // So many rows or kSpan chunks further the same chunks exchange places, or all that do: one place
          // serves them all.
          const unsigned to = kOnePlace ? tile + (Tile::offset(row, chunk) ^ Tile::phase(pass_row) * 16) +
                                              pass_row * Tile::kPitch + c * 16
                                        : tile + Tile::offset(r, chunk + c);
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
