// A tile's share of a step's dQ leaves through shared memory: consumers stage it there, and a thread beside
// them sends it. Additions from registers would go through the pipe that consumers read statistics from.
#pragma once
#include "params/backward.h"
#include "parts/wgmma_backward/arrive_written.cuh"
#include "parts/wgmma_backward/dq_order.cuh"
#include "parts/wgmma_backward/layout.cuh"
#include "parts/wgmma_backward/tiles.cuh"
#include "ptx/bulk_add.cuh"
#include "ptx/bulk_store.cuh"
#include "ptx/bulk_wait.cuh"
/*%#pair%*/
#include "ptx/cluster.cuh"
/*%/pair%*/
#include "ptx/fence_async_global.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/store_shared_16.cuh"

// A part of a step's share: where it is staged, and its barriers' number.
struct SharePart {
  int place;
  unsigned staged;

  __device__ __forceinline__ SharePart(int step, int part)
      : place(step % kShareStages * kShareParts + part),
        staged(kShare + step % kShareStages * kShareBytes + part * kPartOfShare) {}
};

// Stages a part in the order of the sums, that of accumulators (ptx/wgmma.cuh): 16 bytes a lane.
template <int kCount>
__device__ __forceinline__ void stage_share(const float (&dq)[kCount], int part, int step, unsigned shared) {
  const SharePart at(step, part);
  const unsigned to = shared + at.staged + anew(threadIdx.x % 128) * 16;
  mbarrier_wait(shared + kShareSent + 8 * at.place, step / kShareStages % 2 ^ 1);
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    store_shared(to + 2048 * j, uint4{__float_as_uint(dq[4 * j]), __float_as_uint(dq[4 * j + 1]),
                                      __float_as_uint(dq[4 * j + 2]), __float_as_uint(dq[4 * j + 3])});
  }
  arrive_written(shared + kShareStaged + 8 * at.place);
}

// For one thread, which has sent a step's share: gives back the place of a part of the oldest share under
// way, once it has been read.
template <int kPart>
__device__ __forceinline__ void give_back_place(int step, unsigned shared) {
  constexpr int kStepsSince = kShareStages - 1;
  bulk_wait_read<kStepsSince * kShareParts + kShareParts - 1 - kPart>();
  if (step >= kStepsSince) {
    mbarrier_arrive(shared + kShareSent + 8 * SharePart(step - kStepsSince, kPart).place);
  }
}

// For one thread: sends all shares of a tile, and returns when all have been added.
__device__ __forceinline__ void send_shares(const KeyTile& tile, int& step, const BackwardParams& p,
                                            unsigned shared) {
  add_in_order(tile, step, p, [&](int* shares, int head, int m, const auto& comes_first) {
    /*%#claims_ready%*/
    // The second part needs nothing more from the other CTA.
    const bool first = comes_first([&] {
      mbarrier_wait(shared + kShareStaged + 8 * SharePart(step, 0).place, step / kShareStages % 2);
    });
    /*%/claims_ready%*/
    /*%^claims_ready%*/
    const bool first = comes_first();
    /*%/claims_ready%*/
    // Makes what another multiprocessor's copy has stored visible to this one's copy, which adds to it.
    fence_async_global();
#pragma unroll
    for (int part = 0; part < kShareParts; ++part) {
      const SharePart at(step, part);
      // WorkspaceLayout refuses 2^32 rows.
      const unsigned row = static_cast<unsigned>(head) * static_cast<unsigned>(anew(p.padded_q)) + m * kTileM;
      /*%^pair%*/
      float* sums = p.dq_sum + row * 1ull * kHeadDim + part * (kPartOfShare / 4);
      const int bytes = min(kPartOfShare, 4 * kTileM * kHeadDim - part * kPartOfShare);
      /*%/pair%*/
      /*%#pair%*/
      // Each CTA has columns of its own: first come a panel and the rest, then the rest and a panel.
      const int rank = cluster_rank();
      const int column = part == 0 ? rank * (kDqN + 2 * kDqRestN) : kDqN + rank * kDqRestN;
      float* sums = p.dq_sum + row * 1ull * kHeadDim + kTileM * column;
      const int bytes = 4 * kTileM * (part == 0 ? min(kDqN, kHeadDim - column) : kDqRestN);
      /*%/pair%*/
      mbarrier_wait(shared + kShareStaged + 8 * at.place, step / kShareStages % 2);
      if (first) {
        bulk_store(sums, shared + at.staged, bytes);
      } else {
        bulk_add(sums, shared + at.staged, bytes);
      }
      bulk_commit();
    }
    give_back_place<0>(step, shared);
    give_back_place<1>(step, shared);
    /*%^dq_ordered%*/
    if (first) {
      /*%/dq_ordered%*/
      bulk_wait();
      note_share(shares, first);
      /*%^dq_ordered%*/
    }
    /*%/dq_ordered%*/
  });
  bulk_wait();
}
