// The head dim ends halfway through its last step of 16 columns. TMA copies only what there is, since filling
// in zeros takes it time, and does not touch the rest of a row in shared memory. So K's other half is cleared
// once: it meets zeros of Q, but uncleared it might not be finite.
#pragma once
#include "parts/wgmma/layout.cuh"
#include "ptx/fence_async_shared.cuh"
#include "ptx/shared_zeros.cuh"

// For all threads of the CTA, which are synchronised afterwards.
/*%#split%*/
// Only the consumers clear, who live as long as the CTA. For compute-sanitizer, the writes of a thread that
// has ended do not come before what other CTAs write to the same place, even once their cluster is
// synchronised.
/*%/split%*/
__device__ __forceinline__ void clear_half_step(unsigned shared) {
  constexpr unsigned kSwizzled = kLastKRowBytes / 16 - 1;  // which pieces of 16 bytes change places in a row
  constexpr unsigned kPiece = kHeadDim % 64 / 8;
  /*%^split%*/
  for (int i = static_cast<int>(threadIdx.x); i < kStages * kTileN; i += kThreads) {
    /*%/split%*/
    /*%#split%*/
  // For the producer's threads `i` wraps around, and they skip the loop.
  for (unsigned i = threadIdx.x - 128; i < kStages * kTileN; i += kThreads - 128) {
    /*%/split%*/
    const unsigned panel = kK + i / kTileN * kKBytes + kWholePanelsQk * kTileN * kRowBytes;
    const unsigned row = panel + i % kTileN * kLastKRowBytes;
    store_zeros(shared + row + ((row / 128 & kSwizzled) ^ kPiece) * 16);
  }
  fence_async_shared();
}
