// Copies tiles from global to shared memory by cp.async, with all threads of the CTA.
#pragma once

#include "parts/mma/shared_tile.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/cp_async_unguarded.cuh"
#include "ptx/thread_index.cuh"

// kSpan neighbouring threads copy kSpan neighbouring chunks of one row, so that reads take whole sectors and
// writes go to different banks. Where kSpan is 2, a warp would read one sector in each of sixteen rows, and
// L1 would look each of them up. There as many threads copy a row as the row has chunks, if this at most
// doubles a thread's copies.
template <int kRows, int kColumns>
struct TileCopy {
  using Tile = SharedTile<kColumns>;
  // How many whole rows the threads can copy at once, one chunk per thread. With a kSpan of 2, chunks
  // exchange places in the last four of each eight rows.
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

  const char* source;   // this thread's first chunk of a tile at the head's row 0
  long long row_bytes;  // from row to row
  int row, chunk;       // of this thread's first chunk in the tile

  // tensor: row 0 of the head, row_stride in elements.
  __device__ TileCopy(const void* tensor, long long row_stride) : row_bytes(row_stride * 2) {
    const int thread = thread_index();
    row = thread / kLanes;
    chunk = thread % kLanes;
    move_to(tensor);
  }

  // From now on copies rows of the head at `tensor`.
  __device__ void move_to(const void* tensor) {
    int first = row;
    asm volatile("" : "+r"(first));  // or a thread's place in a head is held from head to head
    source = static_cast<const char*>(tensor) + first * row_bytes + chunk * 16;
    asm("" : "+l"(source));  // keeps one pointer in registers, not the terms it is made of
  }

  // Starts the copy of rows first … first + kRows - 1. kGuarded: rows from `end` on do not exist and become
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
          // One pass or kLanes chunks further on, chunks exchange places in the same way or exactly the other
          // way round, so all places follow from one.
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
