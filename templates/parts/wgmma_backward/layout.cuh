// Where everything lies in the shared memory of a CTA that owns kTileN keys, and its barriers.
#pragma once
#include "parts/wgmma_backward/panels.cuh"

constexpr int kStages = 2;         // of Q and dO: one step's and the next one's
constexpr int kConsumerWarps = 8;  // of two warpgroups, which read Q and dO
/*%^sums_apart%*/
constexpr int kOwnerWarps = 8;  // which sum dV, or dK: all, since each warpgroup owns 64 keys
/*%/sums_apart%*/
/*%#sums_apart%*/
constexpr int kOwnerWarps = 4;  // which sum dV, or dK: one warpgroup each
/*%/sums_apart%*/
/*%#pair%*/
constexpr int kDqWarps = 4;  // which sum dQ
constexpr int kKeyReaders = kOwnerWarps + kDqWarps;
constexpr int kExchangeReaders = kDqWarps + 1;  // and the other CTA, when its copy has come
// Besides these warps, two threads of each CTA that feed and send, and one more of the second CTA that feeds.
constexpr int kTicketReaders = 2 * (kConsumerWarps + kDqWarps + 2) + 1;
/*%/pair%*/
/*%^pair%*/
/*%#dq_direct%*/
constexpr int kDqWarps = kConsumerWarps;
/*%/dq_direct%*/
/*%#k_read%*/
constexpr int kKeyReaders = kOwnerWarps;
/*%/k_read%*/
/*%#exchange%*/
constexpr int kExchangeReaders = kOwnerWarps;
/*%/exchange%*/
constexpr int kTicketReaders = kConsumerWarps + 2;  // and two threads, that feed and send
/*%/pair%*/

constexpr int kKBytes = kTileN * kRowBytes * kPanelsQk;
constexpr int kVBytes = kTileN * kRowBytes * kPanelsV;
constexpr int kQBytes = kTileM * kRowBytes * kPanelsQk;  // of one stage
constexpr int kDoBytes = kTileM * kRowBytes * kPanelsV;
constexpr int kRowStatistics = 4 * kTileM;  // bytes: a float a query
/*%#exchange%*/
constexpr int kDsBytes = kTileN * kTileM * 2;  // of dS, or P, of a step
/*%/exchange%*/
/*%#pair%*/
// The panels from which this CTA sums dQ, those of the other CTA's keys, and their dS.
constexpr int kDqPanels = 2;
constexpr int kOtherKBytes = kDqPanels * kTileN * kRowBytes;
/*%/pair%*/
/*%#dq_staged%*/
constexpr int kShareParts = 2;               // in which a step's dQ leaves
constexpr int kPartOfShare = 4 * 64 * kDqN;  // bytes: of the first product, or of each warpgroup's
/*%^pair%*/
constexpr int kShareBytes = kShareParts * kPartOfShare;  // one part from each warpgroup
/*%/pair%*/
/*%#pair%*/
constexpr int kShareBytes = kPartOfShare + 4 * 64 * kDqRestN;
/*%/pair%*/
/*%/dq_staged%*/

constexpr int kK = 0;
constexpr int kV = kK + kKeyStages * kKBytes;
constexpr int kQ = kV + kKeyStages * kVBytes;
constexpr int kDo = kQ + kStages * kQBytes;
/*%#exchange%*/
constexpr int kExchange = kDo + kStages * kDoBytes;  // between the warpgroups: dS for dQ, or P for dS
constexpr int kStepsEnd = kExchange + kExchangeStages * kDsBytes;
/*%/exchange%*/
/*%^exchange%*/
constexpr int kStepsEnd = kDo + kStages * kDoBytes;
/*%/exchange%*/
/*%#pair%*/
constexpr int kOtherDs = kStepsEnd;
constexpr int kOtherK = kOtherDs + kDsBytes;
constexpr int kCopiesEnd = kOtherK + kOtherKBytes;
/*%/pair%*/
/*%^pair%*/
constexpr int kCopiesEnd = kStepsEnd;
/*%/pair%*/
/*%#dq_staged%*/
constexpr int kShare = kCopiesEnd;
constexpr int kLse = kShare + kShareStages * kShareBytes;
/*%/dq_staged%*/
/*%^dq_staged%*/
constexpr int kLse = kCopiesEnd;
/*%/dq_staged%*/
constexpr int kDelta = kLse + kStages * kRowStatistics;

constexpr int kKFull = kDelta + kStages * kRowStatistics;
constexpr int kVFull = kKFull + 8 * kKeyStages;
/*%^splits%*/
constexpr int kDvStaged = kVFull + 8 * kKeyStages;      // in V's place
constexpr int kDkStaged = kDvStaged + 8 * kKeyStages;   // in K's place
constexpr int kKeysEmpty = kDkStaged + 8 * kKeyStages;  // dV and dK have left
/*%/splits%*/
/*%#splits%*/
constexpr int kKeysAdded = kVFull + 8 * kKeyStages;  // shares of dV and dK have left, of two tiles
constexpr int kKeysEmpty = kKeysAdded + 16;
/*%/splits%*/
constexpr int kQFull = kKeysEmpty + 8 * kKeyStages;
constexpr int kQEmpty = kQFull + 8 * kStages;
constexpr int kDoFull = kQEmpty + 8 * kStages;
constexpr int kDoEmpty = kDoFull + 8 * kStages;
/*%#exchange%*/
constexpr int kExchangeFull = kDoEmpty + 8 * kStages;
constexpr int kExchangeEmpty = kExchangeFull + 8 * kExchangeStages;
/*%#k_read%*/
constexpr int kKRead = kExchangeEmpty + 8 * kExchangeStages;  // products have read K: dK may take its place
/*%/k_read%*/
/*%^k_read%*/
constexpr int kKRead = kExchangeEmpty + 8 * kExchangeStages;  // no such barrier: its place stays empty
/*%/k_read%*/
/*%/exchange%*/
/*%^exchange%*/
constexpr int kKRead = kDoEmpty + 8 * kStages;  // no such barrier: its place stays empty
/*%/exchange%*/
/*%#sums_apart%*/
constexpr int kVRead = kKRead + 8;  // products have read V: dV may take its place
constexpr int kReadEnd = kVRead + 8;
/*%/sums_apart%*/
/*%^sums_apart%*/
constexpr int kReadEnd = kKRead + 8;
/*%/sums_apart%*/
/*%#dq_direct%*/
constexpr int kMayAdd = kReadEnd;              // this tile may add to a step's dQ
constexpr int kAdded = kMayAdd + 8 * kStages;  // it has added
constexpr int kStores = kAdded + 8 * kStages;  // whether it stores instead: 4 bytes
constexpr int kDqEnd = kStores + 4 * kStages;
/*%/dq_direct%*/
/*%#dq_staged%*/
constexpr int kShareStaged = kReadEnd;  // each part of each stage
constexpr int kShareSent = kShareStaged + 8 * kShareStages * kShareParts;
constexpr int kDqEnd = kShareSent + 8 * kShareStages * kShareParts;
/*%/dq_staged%*/
/*%#pair%*/
constexpr int kDsFull = kDqEnd;  // in P's place
constexpr int kOtherDsFull = kDsFull + 8 * kExchangeStages;
constexpr int kOtherDsEmpty = kOtherDsFull + 8;  // the other CTA has read its copy
/*%#dq_ready%*/
constexpr int kDqReady = kOtherDsEmpty + 8;  // a step's, in registers
constexpr int kTickets = kDqReady + 8;
/*%/dq_ready%*/
/*%^dq_ready%*/
constexpr int kTickets = kOtherDsEmpty + 8;
/*%/dq_ready%*/
/*%/pair%*/
/*%^pair%*/
/*%#dq%*/
constexpr int kTickets = kDqEnd;
/*%/dq%*/
/*%/pair%*/
/*%^dq%*/
constexpr int kTickets = kReadEnd;
/*%/dq%*/

#include "parts/wgmma_backward/tickets.cuh"
#include "ptx/mbarrier_bytes.cuh"
/*%^divided%*/
static_assert(kTickets + kTicketBytes <= kSharedBytes);
/*%/divided%*/
/*%#divided%*/
constexpr int kPartKnown = kTickets + kTicketBytes;  // of two tiles: it is known what becomes of their sums …
constexpr int kPart = kPartKnown + 16;               // … and what: 4 bytes each
static_assert(kPart + 8 <= kSharedBytes);
/*%/divided%*/

// One thread makes the barriers; the caller synchronises the CTA.
__device__ __forceinline__ void make_barriers(unsigned shared) {
  for (int stage = 0; stage < kKeyStages; ++stage) {
    mbarrier_init(shared + kKFull + 8 * stage, 1);
    mbarrier_init(shared + kVFull + 8 * stage, 1);
    mbarrier_init(shared + kKeysEmpty + 8 * stage, 1);
    /*%^splits%*/
    mbarrier_init(shared + kDvStaged + 8 * stage, kOwnerWarps);
    mbarrier_init(shared + kDkStaged + 8 * stage, kOwnerWarps);
    /*%/splits%*/
  }
  /*%#splits%*/
  for (int slot = 0; slot < 2; ++slot) mbarrier_init(shared + kKeysAdded + 8 * slot, kOwnerWarps);
  /*%/splits%*/
  /*%#k_read%*/
  mbarrier_init(shared + kKRead, kKeyReaders);
  /*%/k_read%*/
  /*%#sums_apart%*/
  mbarrier_init(shared + kVRead, kOwnerWarps);
  /*%/sums_apart%*/
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(shared + kQFull + 8 * stage, 1);
    mbarrier_init(shared + kQEmpty + 8 * stage, kConsumerWarps);
    mbarrier_init(shared + kDoFull + 8 * stage, 1);
    mbarrier_init(shared + kDoEmpty + 8 * stage, kConsumerWarps);
  }
  /*%#exchange%*/
  for (int stage = 0; stage < kExchangeStages; ++stage) {
    mbarrier_init(shared + kExchangeFull + 8 * stage, kOwnerWarps);
    mbarrier_init(shared + kExchangeEmpty + 8 * stage, kExchangeReaders);
  }
  /*%/exchange%*/
  /*%#dq_direct%*/
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(shared + kMayAdd + 8 * stage, 1);
    mbarrier_init(shared + kAdded + 8 * stage, kDqWarps);
  }
  /*%/dq_direct%*/
  /*%#dq_staged%*/
  for (int part = 0; part < kShareStages * kShareParts; ++part) {
    mbarrier_init(shared + kShareStaged + 8 * part, 4);
    mbarrier_init(shared + kShareSent + 8 * part, 1);
  }
  /*%/dq_staged%*/
  /*%#pair%*/
  for (int stage = 0; stage < kExchangeStages; ++stage) {
    mbarrier_init(shared + kDsFull + 8 * stage, kOwnerWarps);
  }
  mbarrier_init(shared + kOtherDsFull, 1);
  mbarrier_init(shared + kOtherDsEmpty, kDqWarps);
  /*%#dq_ready%*/
  mbarrier_init(shared + kDqReady, kDqWarps);
  /*%/dq_ready%*/
  /*%/pair%*/
  /*%#divided%*/
  for (int slot = 0; slot < 2; ++slot) mbarrier_init(shared + kPartKnown + 8 * slot, 1);
  /*%/divided%*/
  make_ticket_barriers(shared, kTicketReaders);
  mbarrier_init_fence();
}
