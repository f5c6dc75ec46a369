// Copies the LSE and delta of a tile's query rows to shared memory, beside the copies of Q and dO.
#pragma once

#include "params/backward.h"
/*%#async%*/
#include "ptx/cp_async_unguarded.cuh"
/*%/async%*/
/*%^async%*/
#include "ptx/store_shared_16.cuh"
/*%/async%*/
#include "ptx/thread_index.cuh"

constexpr int kRowPieces = kTileM / 4;  // pieces of 16 bytes in LSE, and as many in delta

// LSE first, then delta. The workspace is padded: no tile reaches past its end.
struct RowCopy {
  const float* source;  // what this thread copies for a tile that starts at the head's row 0
  /*%^async%*/
  unsigned target;
  uint4 held;
  /*%/async%*/

  // row: the head's row 0, counted through all heads and their padding.
  __device__ RowCopy(const BackwardParams& params, long long row) {
    const int thread = thread_index();
    source = (thread < kRowPieces ? params.lse_log2 : params.delta) + thread % kRowPieces * 4 + row;
    asm("" : "+l"(source));  // keeps one pointer in registers, not the terms it is made of
  }

  // first: the tile's first row.
  __device__ void start(unsigned to, int first) {
    const int thread = thread_index();
    if (thread < 2 * kRowPieces) {
      /*%#async%*/
      cp_async_16(to + thread * 16, source + first);
      /*%/async%*/
      /*%^async%*/
      target = to + thread * 16;
      held = *reinterpret_cast<const uint4*>(source + first);
      /*%/async%*/
    }
  }
  /*%^async%*/

  __device__ void finish() const {
    if (thread_index() < 2 * kRowPieces) store_shared(target, held);
  }
  /*%/async%*/
};
