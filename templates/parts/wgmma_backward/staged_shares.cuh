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

// Stages a warpgroup's part in the order of the sums, that of accumulators (ptx/wgmma.cuh): 16 bytes a lane.
__device__ __forceinline__ void stage_share(const float (&dq)[kDqN / 2], int sharer, int step,
                                            unsigned shared) {
  const unsigned to = shared + kShare + sharer * kShareBytes + anew(threadIdx.x % 128) * 16;
  mbarrier_wait(shared + kShareSent + 8 * sharer, (step & 1) ^ 1);
#pragma unroll
  for (int j = 0; j < kDqN / 8; ++j) {
    store_shared(to + 2048 * j, uint4{__float_as_uint(dq[4 * j]), __float_as_uint(dq[4 * j + 1]),
                                      __float_as_uint(dq[4 * j + 2]), __float_as_uint(dq[4 * j + 3])});
  }
  arrive_written(shared + kShareStaged + 8 * sharer);
}

// For one thread: sends all shares of a tile, and returns when all have been added.
__device__ __forceinline__ void send_shares(const KeyTile& tile, int& step, const BackwardParams& p,
                                            unsigned shared) {
  add_in_order(tile, step, p, [&](int* shares, int head, int m, bool first) {
    // Makes what another multiprocessor's copy has stored visible to this one's copy, which adds to it.
    fence_async_global();
#pragma unroll
    for (int sharer = 0; sharer < kSharers; ++sharer) {
      const unsigned share = shared + kShare + sharer * kShareBytes;
      // WorkspaceLayout refuses 2^32 rows.
      const unsigned row = static_cast<unsigned>(head) * static_cast<unsigned>(anew(p.padded_q)) + m * kTileM;
      /*%^pair%*/
      float* sums = p.dq_sum + row * 1ull * kHeadDim + sharer * (kShareBytes / 4);
      constexpr int bytes = kShareBytes;
      /*%/pair%*/
      /*%#pair%*/
      // Each CTA has columns of its own. The second one may have fewer.
      const int before = cluster_rank() * (kShareBytes / 4);
      float* sums = p.dq_sum + row * 1ull * kHeadDim + before;
      const int bytes = min(kShareBytes, 4 * (kTileM * kHeadDim - before));
      /*%/pair%*/
      mbarrier_wait(shared + kShareStaged + 8 * sharer, step & 1);
      if (first) {
        bulk_store(sums, share, bytes);
      } else {
        bulk_add(sums, share, bytes);
      }
      bulk_commit();
    }
    /*%^pair%*/
    bulk_wait_read<1>();
    mbarrier_arrive(shared + kShareSent);
    /*%/pair%*/
    bulk_wait_read();
    mbarrier_arrive(shared + kShareSent + 8 * (kSharers - 1));
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
