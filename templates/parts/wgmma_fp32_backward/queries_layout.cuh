// What a CTA that owns query rows keeps in shared memory: their Q and dO, and rings of tiles of K and V, each
// as three tiles of bf16 whose sum it is; and P, which one warpgroup hands to the other.
#pragma once

#include "parts/wgmma_fp32_backward/tiles.cuh"
#include "parts/wgmma_fp32_backward/weights_place.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mbarrier_bytes.cuh"

static_assert(kTileM == TileQK::kRows && kTileN == TileQK::kRows, "the host counts the same tiles");

// Offsets from the start of shared memory.
constexpr int kQ = 0;
constexpr int kDout = kQ + TileQK::kBytes;
constexpr int kK = kDout + TileV::kBytes;
constexpr int kV = kK + kStages * TileQK::kBytes;
constexpr int kP = kV + kStages * TileV::kBytes;
// Barriers: Q is there, and dO; a tile of K or V is there; and who reads it is done with it.
constexpr int kQFull = kP + kPBytes;
constexpr int kDoutFull = kQFull + 8;
constexpr int kKFull = kDoutFull + 8;
constexpr int kVFull = kKFull + 8 * kStages;
constexpr int kKEmpty = kVFull + 8 * kStages;
constexpr int kVEmpty = kKEmpty + 8 * kStages;
static_assert(kVEmpty + 8 * kStages == kSharedBytes, "the host allocates what this lays out");

// Numbered barriers.
constexpr int kPIsThere = 1;     // P has been stored, for the warpgroup of dQ
constexpr int kPlaceIsFree = 2;  // the next one may be stored

// One thread makes the barriers; the caller synchronises the CTA.
__device__ __forceinline__ void make_barriers(unsigned shared) {
  mbarrier_init(shared + kQFull, 1);
  mbarrier_init(shared + kDoutFull, 1);
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(shared + kKFull + 8 * stage, 1);
    mbarrier_init(shared + kVFull + 8 * stage, 1);
    mbarrier_init(shared + kKEmpty + 8 * stage, 8);  // a warp arrives once: both warpgroups read K
    mbarrier_init(shared + kVEmpty + 8 * stage, 4);
  }
  mbarrier_init_fence();
}
