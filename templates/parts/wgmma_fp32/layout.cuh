// What a CTA keeps in shared memory: Q, and rings of blocks of K and V, each as three tiles of bf16 whose sum
// it is.
#pragma once

#include "parts/wgmma_fp32/split_tile.cuh"
#include "ptx/mbarrier.cuh"
/*%#cluster%*/
#include "ptx/mbarrier_bytes.cuh"
/*%/cluster%*/
/*%#padded%*/
#include "ptx/shared_zeros.cuh"
/*%/padded%*/

/*%#q_in_shared%*/
using TileQ = SplitTile<64, kHeadDim>;  // of one warpgroup
/*%/q_in_shared%*/
using TileK = SplitTile<kTileN, kHeadDim>;
using TileV = SplitTile<kTileN, kHeadDimV>;

// Offsets from the start of shared memory.
/*%#q_in_shared%*/
constexpr int kQ = 0;
constexpr int kK = kWarpgroups * TileQ::kBytes;
/*%/q_in_shared%*/
/*%^q_in_shared%*/
constexpr int kK = 0;
/*%/q_in_shared%*/
constexpr int kV = kK + kStages * TileK::kBytes;
/*%^by_columns%*/
constexpr int kKFull = kV + kStages * TileV::kBytes;  // barriers: a block of K has been split,
/*%/by_columns%*/
/*%#by_columns%*/
constexpr int kSums = kV + kStages * TileV::kBytes;      // of the other CTA's columns: its part of the scores
constexpr int kSumsBytes = 64 * kTileN * sizeof(float);  // of one warpgroup
constexpr int kKFull = kSums + kWarpgroups * kSumsBytes;  // barriers: a block of K has been split,
/*%/by_columns%*/
constexpr int kVFull = kKFull + 8 * kStages;
constexpr int kKEmpty = kVFull + 8 * kStages;  // and all warpgroups have multiplied it
constexpr int kVEmpty = kKEmpty + 8 * kStages;
/*%^by_columns%*/
static_assert(kVEmpty + 8 * kStages == kSharedBytes, "the host allocates what this lays out");
/*%/by_columns%*/
/*%#by_columns%*/
constexpr int kSumsFull = kVEmpty + 8 * kStages;        // a warpgroup's sums have come,
constexpr int kSumsRead = kSumsFull + 8 * kWarpgroups;  // and the other CTA has added those that it got
static_assert(kSumsRead + 8 * kWarpgroups == kSharedBytes, "the host allocates what this lays out");
/*%/by_columns%*/

/*%#padded%*/
// A CTA sends whole rows of panels to the other, also columns past the head's last. The caller synchronises
// the CTA; whoever sends fences after that.
__device__ __forceinline__ void clear_blocks(unsigned shared) {
  for (unsigned i = kK + 16 * threadIdx.x; i < kKFull; i += 16 * kThreads) store_zeros(shared + i);
}

/*%/padded%*/
// One thread makes the barriers; the caller synchronises the CTA.
__device__ __forceinline__ void make_barriers(unsigned shared) {
  /*%^by_keys%*/
  constexpr int kFills = 4, kReads = 4 * kWarpgroups;  // a warp arrives once
  /*%/by_keys%*/
  /*%#by_keys%*/
  // One thread speaks for a producer; warps that have multiplied a block tell both CTAs' producers.
  constexpr int kFills = 1, kReads = kCluster * 4 * kWarpgroups;
  /*%/by_keys%*/
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(shared + kKFull + 8 * stage, kFills);
    mbarrier_init(shared + kVFull + 8 * stage, kFills);
    mbarrier_init(shared + kKEmpty + 8 * stage, kReads);
    mbarrier_init(shared + kVEmpty + 8 * stage, kReads);
  }
  /*%#by_columns%*/
  for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
    mbarrier_init(shared + kSumsFull + 8 * warpgroup, 4);  // a warp arrives once
    mbarrier_init(shared + kSumsRead + 8 * warpgroup, 4);
  }
  /*%/by_columns%*/
  /*%#cluster%*/
  mbarrier_init_fence();
  /*%/cluster%*/
}
