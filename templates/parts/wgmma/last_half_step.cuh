// The head dim ends halfway through its last step of 16 columns. TMA copies what there is, since filling in
// zeros takes it time, and leaves the rest of a row in shared memory alone. So K's other half is cleared
// once: Q has zeros there, but what lies beside them might not be finite.
#pragma once
#include "parts/wgmma/layout.cuh"
#include "ptx/fence_async_shared.cuh"
#include "ptx/shared_zeros.cuh"

// All threads of the CTA, which are synchronised after it.
/*%#split%*/
// The consumers clear, who live as long as the CTA: to compute-sanitizer, what a thread wrote that has ended
// is not before what other CTAs write to the same place once their cluster is synchronised.
/*%/split%*/
__device__ __forceinline__ void clear_half_step(unsigned shared) {
  constexpr unsigned kSwizzled = kLastKRowBytes / 16 - 1;  // which pieces of 16 bytes change places in a row
  constexpr unsigned kPiece = kHeadDim % 64 / 8;
  /*%^split%*/
  for (int i = static_cast<int>(threadIdx.x); i < kStages * kTileN; i += kThreads) {
    /*%/split%*/
    /*%#split%*/
  // The producer's threads wrap around, and are none of these.
  for (unsigned i = threadIdx.x - 128; i < kStages * kTileN; i += kThreads - 128) {
    /*%/split%*/
    const unsigned panel = kK + i / kTileN * kKBytes + kWholePanelsQk * kTileN * kRowBytes;
    const unsigned row = panel + i % kTileN * kLastKRowBytes;
    store_zeros(shared + row + ((row / 128 & kSwizzled) ^ kPiece) * 16);
  }
  fence_async_shared();
}
