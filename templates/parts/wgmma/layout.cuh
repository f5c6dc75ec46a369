// Where everything lies in the CTA's shared memory. Tiles are panels of 64 columns, each row 128 bytes,
// swizzled as TMA does it over 1024 bytes.
/*%#last_k%*/
// The head dim ends inside a panel: TMA fills the rest of Q's with zeros, but copies no more than there is of
// K, because filling in takes it time.
/*%/last_k%*/
/*%#last_v%*/
// No more than there is of V is copied, either.
/*%/last_v%*/
/*%#narrow_k%*/
// The last panel of K takes no more room than it must, either, and its swizzle is narrower.
/*%/narrow_k%*/
#pragma once
#include "ptx/mbarrier.cuh"
#include "ptx/mbarrier_bytes.cuh"

constexpr int kRowBytes = 128;  // 64 columns of 16 bits
constexpr int kPanelsQk = (kHeadDim + 63) / 64;
constexpr int kPanelsV = (kHeadDimV + 63) / 64;
/*%#last_k%*/
constexpr int kWholePanelsQk = kHeadDim / 64;
/*%/last_k%*/
/*%#last_v%*/
constexpr int kWholePanelsV = kHeadDimV / 64;
/*%/last_v%*/

// Bytes of one warpgroup's Q.
constexpr int kQBytes = 64 * kRowBytes * kPanelsQk;
// Bytes of one block of K or V, as it is copied.
constexpr int kKLoaded = kTileN * kHeadDim * 2;
constexpr int kVLoaded = kTileN * kHeadDimV * 2;
// Bytes of one stage.
/*%^narrow_k%*/
constexpr int kKBytes = kTileN * kRowBytes * kPanelsQk;
/*%/narrow_k%*/
/*%#narrow_k%*/
constexpr int kKBytes = (kTileN * (kRowBytes * kWholePanelsQk + kLastKRowBytes) + 1023) / 1024 * 1024;
/*%/narrow_k%*/
constexpr int kVBytes = kTileN * kRowBytes * kPanelsV;

constexpr int kQ = 0;
constexpr int kK = kQ + kWarpgroups * kQBytes;
constexpr int kV = kK + kStages * kKBytes;
/*%#o_through_q%*/
constexpr int kO = kQ;
constexpr int kPassPanels = kPanelsV;  // panels of O there at a time
constexpr int kOStep = kQBytes;        // from one warpgroup's O to the next one's
/*%/o_through_q%*/
/*%#o_apart%*/
constexpr int kO = kV + kStages * kVBytes;
constexpr int kPassPanels = kPanelsV / kOPasses;      // panels of O there at a time
constexpr int kOStep = 64 * kRowBytes * kPassPanels;  // from one warpgroup's O to the next one's

constexpr int kKFull = kO + kWarpgroups * kOStep;
/*%/o_apart%*/
/*%^o_apart%*/

constexpr int kKFull = kV + kStages * kVBytes;
/*%/o_apart%*/
constexpr int kKEmpty = kKFull + 8 * kStages;
constexpr int kVFull = kKEmpty + 8 * kStages;
constexpr int kVEmpty = kVFull + 8 * kStages;
constexpr int kQFull = kVEmpty + 8 * kStages;
/*%#q_again%*/
constexpr int kQEmpty = kQFull + 8 * kWarpgroups;
constexpr int kEnd = kQEmpty + 8 * kWarpgroups;
/*%/q_again%*/
/*%#one_each%*/
constexpr int kEnd = kQFull + 8 * kWarpgroups;
/*%/one_each%*/
/*%#dynamic%*/
constexpr int kTicketFull = kEnd;  // two tile numbers on their way from the producer to the consumers
constexpr int kTicketEmpty = kTicketFull + 16;
constexpr int kTicket = kTicketEmpty + 16;
static_assert(kTicket + 8 <= kSharedBytes);
/*%/dynamic%*/
/*%^split%*/
static_assert(kEnd <= kSharedBytes);
/*%/split%*/
/*%#split%*/
constexpr int kSums = kQFull + 8 * kWarpgroups;  // of every CTA's rows, with their shifts
static_assert(kSums + kCluster * kTileM * 8 <= kSharedBytes);

// Each CTA adds up some groups of eight of O's columns, from all CTAs' partial results.
constexpr int kGroupsOfCta = (kHeadDimV / 8 + kCluster - 1) / kCluster;
constexpr int kPieceBytes = 4 * 4;  // two columns of two rows
constexpr int kPieces = kK;         // where K and V have been
static_assert(kCluster * kTileM * 2 * kGroupsOfCta * kPieceBytes <= kStages * (kKBytes + kVBytes));
/*%/split%*/
/*%#even%*/

constexpr int kGroupsOfCta = kHeadDimV / 8;  // of eight columns of O, where others have a share of a tile
/*%/even%*/

/*%#cluster%*/
// Which CTA of a cluster loads K for all, and which V.
constexpr int kLoaderOfK = 0, kLoaderOfV = 1;

/*%/cluster%*/
// A place in a ring of kStages buffers, and the parity its barriers are waited for with.
struct RingPlace {
  int stage, parity;
};

__device__ __forceinline__ void advance(RingPlace& place) {
  if (++place.stage == kStages) {
    place.stage = 0;
    place.parity ^= 1;
  }
}

// One thread makes the barriers; the caller synchronises the CTA.
__device__ __forceinline__ void make_barriers(unsigned shared) {
  constexpr int kConsumerWarps = 4 * kWarpgroups;
  /*%^cluster%*/
  constexpr int kReaders = kConsumerWarps;  // of a block of K or V
  /*%/cluster%*/
  /*%#cluster%*/
  constexpr int kReaders = kCluster * kConsumerWarps;  // of a block of K or V
  /*%/cluster%*/
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(shared + kKFull + 8 * stage, 1);
    mbarrier_init(shared + kVFull + 8 * stage, 1);
    mbarrier_init(shared + kKEmpty + 8 * stage, kReaders);
    mbarrier_init(shared + kVEmpty + 8 * stage, kReaders);
  }
  for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
    mbarrier_init(shared + kQFull + 8 * warpgroup, 1);
    /*%#q_again%*/
    mbarrier_init(shared + kQEmpty + 8 * warpgroup, kOPasses == 0 ? 1 : 4);
    /*%/q_again%*/
  }
  /*%#dynamic%*/
  /*%^cluster%*/
  constexpr int kTicketReaders = kConsumerWarps;
  /*%/cluster%*/
  /*%#cluster%*/
  constexpr int kTicketReaders = kReaders + kCluster - 1;  // other CTAs' producers read, too
  /*%/cluster%*/
  for (int slot = 0; slot < 2; ++slot) {
    mbarrier_init(shared + kTicketFull + 8 * slot, 1);
    mbarrier_init(shared + kTicketEmpty + 8 * slot, kTicketReaders);
  }
  /*%/dynamic%*/
  mbarrier_init_fence();
}
