// What a CTA keeps in shared memory: Q, and rings of blocks of K and V, each as three tiles of bf16 whose sum
// it is.
#pragma once

#include "parts/mma/split.cuh"
#include "ptx/mbarrier.cuh"
/*%#cluster%*/
#include "ptx/mbarrier_bytes.cuh"
/*%/cluster%*/
/*%#padded%*/
#include "ptx/shared_zeros.cuh"
/*%/padded%*/

constexpr int kRowBytes = 128;  // of a panel: 64 columns, after which the widest swizzle repeats

// One panel after another, and in each of them its first parts' rows, then the second and third parts'. So
// one product may have the rows of two parts. The 16-byte chunks of a row change places, and the same chunk
// of eight rows lies in different banks (PTX ISA, "128B swizzle").
template <int kRowsOfTile, int kColumns>
struct SplitTile {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kChunks = (kColumns + 15) / 16 * 2;  // of 8 columns, padded to whole steps of wgmma
  static constexpr int kPartBytes = kRows * kRowBytes;  // of a panel
  static constexpr int kPanelBytes = kParts * kPartBytes;
  static constexpr int kBytes = (kColumns + 63) / 64 * kPanelBytes;

  // Bytes from the tile's start to a chunk of the first part.
  __device__ static unsigned offset(unsigned row, unsigned chunk) {
    return chunk / 8 * kPanelBytes + row * kRowBytes + (chunk ^ row) % 8 * 16;
  }
};

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
constexpr int kKFull = kV + kStages * TileV::kBytes;  // barriers: a block of K has been split,
constexpr int kVFull = kKFull + 8 * kStages;
constexpr int kKEmpty = kVFull + 8 * kStages;  // and all warpgroups have multiplied it
constexpr int kVEmpty = kKEmpty + 8 * kStages;
static_assert(kVEmpty + 8 * kStages == kSharedBytes, "the host allocates what this lays out");

// A place in the rings of K and V, and the parity that its barriers are waited for with.
struct RingPlace {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/*%#padded%*/
// A CTA sends whole rows of panels to the other, also columns past the head's last. The caller synchronises
// the CTA; whoever sends fences after that.
__device__ __forceinline__ void clear_blocks(unsigned shared) {
  for (unsigned i = kK + 16 * threadIdx.x; i < kKFull; i += 16 * kThreads) store_zeros(shared + i);
}

/*%/padded%*/
// One thread makes the barriers; the caller synchronises the CTA.
__device__ __forceinline__ void make_barriers(unsigned shared) {
  /*%^cluster%*/
  constexpr int kFills = 4, kReads = 4 * kWarpgroups;  // a warp arrives once
  /*%/cluster%*/
  /*%#cluster%*/
  // One thread speaks for a producer; warps that have multiplied a block tell both CTAs' producers.
  constexpr int kFills = 1, kReads = kCluster * 4 * kWarpgroups;
  /*%/cluster%*/
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(shared + kKFull + 8 * stage, kFills);
    mbarrier_init(shared + kVFull + 8 * stage, kFills);
    mbarrier_init(shared + kKEmpty + 8 * stage, kReads);
    mbarrier_init(shared + kVEmpty + 8 * stage, kReads);
  }
  /*%#cluster%*/
  mbarrier_init_fence();
  /*%/cluster%*/
}
