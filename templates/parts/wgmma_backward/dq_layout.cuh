// Where everything lies in the shared memory of a CTA that owns rows of dQ: Q and dO of kTileM queries, and a
// ring of tiles of keys, of V and K in turn. Each warpgroup has 64 of the queries, and barriers of its own.
#pragma once
#include "parts/wgmma_backward/panels.cuh"

constexpr int kWarpgroups = kTileM / 64;
constexpr int kPanelsWidest = kPanelsQk > kPanelsV ? kPanelsQk : kPanelsV;
constexpr int kQBytes = 64 * kRowBytes * kPanelsQk;  // of a warpgroup
constexpr int kDoBytes = 64 * kRowBytes * kPanelsV;
constexpr int kSlotBytes = kTileN * kRowBytes * kPanelsWidest;

constexpr int kQ = 0;
constexpr int kDo = kQ + kWarpgroups * kQBytes;
constexpr int kRing = kDo + kWarpgroups * kDoBytes;
constexpr int kQFull = kRing + kSlots * kSlotBytes;
constexpr int kQEmpty = kQFull + 8 * kWarpgroups;
constexpr int kDoFull = kQEmpty + 8 * kWarpgroups;
constexpr int kDoEmpty = kDoFull + 8 * kWarpgroups;
constexpr int kSlotFull = kDoEmpty + 8 * kWarpgroups;
constexpr int kSlotEmpty = kSlotFull + 8 * kSlots;
constexpr int kTickets = kSlotEmpty + 8 * kSlots;
#include "parts/wgmma_backward/tickets.cuh"
#include "ptx/mbarrier_bytes.cuh"
static_assert(kTickets + kTicketBytes <= kSharedBytes);

// A place in the ring, and the parity its barriers are waited for with.
struct Slot {
  int number, parity;

  __device__ __forceinline__ void advance() {
    if (++number == kSlots) {
      number = 0;
      parity ^= 1;
    }
  }
};

// One thread makes the barriers; the caller synchronises the CTA.
__device__ __forceinline__ void make_barriers(unsigned shared) {
  for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
    mbarrier_init(shared + kQFull + 8 * warpgroup, 1);
    mbarrier_init(shared + kQEmpty + 8 * warpgroup, 1);
    mbarrier_init(shared + kDoFull + 8 * warpgroup, 1);
    mbarrier_init(shared + kDoEmpty + 8 * warpgroup, 4);
  }
  for (int slot = 0; slot < kSlots; ++slot) {
    mbarrier_init(shared + kSlotFull + 8 * slot, 1);
    mbarrier_init(shared + kSlotEmpty + 8 * slot, 4 * kWarpgroups);
  }
  make_ticket_barriers(shared, 4 * kWarpgroups + 1);  // and the thread that feeds Q and dO
  mbarrier_init_fence();
}
