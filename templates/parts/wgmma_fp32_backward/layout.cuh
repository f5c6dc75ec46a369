// What a CTA keeps in shared memory: its keys' rows of K and V, and rings of tiles of Q and dO, each as three
// tiles of bf16 whose sum it is; what warpgroups hand to each other; and LSE and delta.
#pragma once

#include "parts/wgmma_fp32_backward/tiles.cuh"
#include "parts/wgmma_fp32_backward/weights_place.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mbarrier_bytes.cuh"

/*%#dq_sum%*/
using TileDs = SplitTile<64, 64>;  // dS^T: a row for each key
/*%/dq_sum%*/
constexpr int kRowsBytes = 2 * 64 * sizeof(float);  // of LSE, and then of delta

static_assert(kTileM == TileQK::kRows && kTileN == TileQK::kRows, "the host counts the same tiles");

// Offsets from the start of shared memory.
constexpr int kK = 0;
constexpr int kV = kK + TileQK::kBytes;
constexpr int kQ = kV + TileV::kBytes;
constexpr int kDout = kQ + kStages * TileQK::kBytes;
constexpr int kP = kDout + kStages * TileV::kBytes;
/*%#dq_sum%*/
constexpr int kDs = kP;  // takes the place of P^T once that has been read
static_assert(kPBytes <= TileDs::kBytes, "P^T fits");
constexpr int kRows = kDs + TileDs::kBytes;
/*%/dq_sum%*/
/*%^dq_sum%*/
constexpr int kRows = kP + kPBytes;
/*%/dq_sum%*/
// Barriers: a tile of dO is there; a tile of Q with its LSE and delta is; and who reads it is done with it.
constexpr int kDoutFull = kRows + kStages * kRowsBytes;
constexpr int kQFull = kDoutFull + 8 * kStages;
constexpr int kDoutEmpty = kQFull + 8 * kStages;
constexpr int kQEmpty = kDoutEmpty + 8 * kStages;
static_assert(kQEmpty + 8 * kStages == kSharedBytes, "the host allocates what this lays out");

// Numbered barriers.
constexpr int kKeysAreThere = 1;
constexpr int kPIsThere = 2;     // P^T has been stored, for the warpgroup of dK
constexpr int kPlaceIsFree = 3;  // the next one may be stored
/*%#dq_sum%*/
constexpr int kWarpsOfDk = 4;  // among themselves
/*%/dq_sum%*/

// One thread makes the barriers; the caller synchronises the CTA.
__device__ __forceinline__ void make_barriers(unsigned shared) {
  constexpr int kReads = 8;  // a warp arrives once
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(shared + kQFull + 8 * stage, 1);
    mbarrier_init(shared + kDoutFull + 8 * stage, 1);
    mbarrier_init(shared + kQEmpty + 8 * stage, kReads);
    mbarrier_init(shared + kDoutEmpty + 8 * stage, kReads);
  }
  mbarrier_init_fence();
}
