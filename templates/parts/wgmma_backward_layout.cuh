// Where everything lies in the shared memory of a CTA that owns kTileN keys, and its barriers.
#pragma once
#include "parts/wgmma_backward_panels.cuh"

constexpr int kStages = 2;         // of Q and dO: one step's and the next one's
constexpr int kConsumerWarps = 8;  // two warpgroups, 64 keys each
static_assert(kTileN == 128);

constexpr int kKBytes = kTileN * kRowBytes * kPanelsQk;
constexpr int kVBytes = kTileN * kRowBytes * kPanelsV;
constexpr int kQBytes = kTileM * kRowBytes * kPanelsQk;  // of one stage
constexpr int kDoBytes = kTileM * kRowBytes * kPanelsV;
constexpr int kRowStatistics = 4 * kTileM;     // bytes: a float a query
constexpr int kDsBytes = kTileN * kTileM * 2;  // a row a key, in panels of 64 queries

constexpr int kK = 0;
constexpr int kV = kK + kKeyStages * kKBytes;
constexpr int kQ = kV + kKeyStages * kVBytes;
constexpr int kDo = kQ + kStages * kQBytes;
/*%#dq%*/
constexpr int kDs = kDo + kStages * kDoBytes;
constexpr int kLse = kDs + kStages * kDsBytes;
/*%/dq%*/
/*%^dq%*/
constexpr int kLse = kDo + kStages * kDoBytes;
/*%/dq%*/
constexpr int kDelta = kLse + kStages * kRowStatistics;

constexpr int kKFull = kDelta + kStages * kRowStatistics;
constexpr int kVFull = kKFull + 8 * kKeyStages;
constexpr int kDvStaged = kVFull + 8 * kKeyStages;  // in V's place
constexpr int kDkStaged = kDvStaged + 8;            // in K's place
constexpr int kKeysEmpty = kDkStaged + 8;           // both have left
constexpr int kQFull = kKeysEmpty + 8 * kKeyStages;
constexpr int kQEmpty = kQFull + 8 * kStages;
constexpr int kDoFull = kQEmpty + 8 * kStages;
constexpr int kDoEmpty = kDoFull + 8 * kStages;
/*%#dq%*/
constexpr int kDsFull = kDoEmpty + 8 * kStages;
constexpr int kDsEmpty = kDsFull + 8 * kStages;
constexpr int kKRead = kDsEmpty + 8 * kStages;  // the tile's last dQ has read K
constexpr int kEnd = kKRead + 8;
/*%/dq%*/
/*%^dq%*/
constexpr int kEnd = kDoEmpty + 8 * kStages;
/*%/dq%*/
static_assert(kEnd <= kSharedBytes);

// One thread makes the barriers; the caller synchronises the CTA.
__device__ __forceinline__ void make_barriers(unsigned shared) {
  for (int stage = 0; stage < kKeyStages; ++stage) {
    mbarrier_init(shared + kKFull + 8 * stage, 1);
    mbarrier_init(shared + kVFull + 8 * stage, 1);
    mbarrier_init(shared + kKeysEmpty + 8 * stage, 1);
  }
  mbarrier_init(shared + kDvStaged, kConsumerWarps);
  mbarrier_init(shared + kDkStaged, kConsumerWarps);
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(shared + kQFull + 8 * stage, 1);
    mbarrier_init(shared + kQEmpty + 8 * stage, kConsumerWarps);
    mbarrier_init(shared + kDoFull + 8 * stage, 1);
    mbarrier_init(shared + kDoEmpty + 8 * stage, kConsumerWarps);
    /*%#dq%*/
    mbarrier_init(shared + kDsFull + 8 * stage, kConsumerWarps);
    mbarrier_init(shared + kDsEmpty + 8 * stage, kConsumerWarps);
    /*%/dq%*/
  }
  /*%#dq%*/
  mbarrier_init(shared + kKRead, kConsumerWarps);
  /*%/dq%*/
  mbarrier_init_fence();
}
