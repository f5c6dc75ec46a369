// LSE and delta of a tile's query rows, on their way through a register to shared memory: first all of LSE,
// then all of delta.
#pragma once

#include "params/backward.h"
#include "ptx/infinity.cuh"
#include "ptx/store_shared.cuh"
#include "ptx/thread_index.cuh"

static_assert(2 * kTileM <= kThreads, "a thread has one number");

// This thread's number of the tile that begins at first_row. LSE is +inf, so that P is 0, for rows past the
// last. pair: the head's number, counted through all batches.
__device__ __forceinline__ float load_row(const BackwardParams& params, int pair, int first_row) {
  const int thread = thread_index(), row = first_row + thread % kTileM;
  if (thread >= kTileM) {
    return thread < 2 * kTileM ? params.delta[static_cast<long long>(pair) * params.padded_q + row] : 0.0f;
  }
  return row < params.seqlen_q ? params.lse[static_cast<long long>(pair) * params.seqlen_q + row] : kInfinity;
}

// LSE becomes +inf, too, for rows that see no key, or none whose score is above -inf.
__device__ __forceinline__ void store_row(unsigned rows, float number) {
  const int thread = thread_index();
  if (number == -kInfinity) number = kInfinity;  // not in load_row, where it would wait for the load
  if (thread < 2 * kTileM) store_shared(rows + thread * 4, __float_as_uint(number));
}
