// A tile's share of a step's dQ leaves from accumulators, once a thread beside the consumers says how.
#pragma once
#include "params/backward.h"
#include "parts/wgmma_backward/dq_order.cuh"
#include "parts/wgmma_backward/layout.cuh"
#include "parts/wgmma_backward/tiles.cuh"
#include "ptx/load_shared.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/reduction.cuh"
#include "ptx/store_shared.cuh"

// dQ's sums lie as accumulators do (ptx/wgmma.cuh): 16 bytes a lane, next to each other. `place` is where
// this lane's begin, in units of 16 bytes (WorkspaceLayout refuses 2^32 of them).
/*%#past_columns%*/
// `column` is the share's first column: a last share has some that are past the last one.
/*%/past_columns%*/
__device__ __forceinline__ void leave_share(
    const float (&dq)[kDqN / 2], unsigned place, /*%#past_columns%*/int column, /*%/past_columns%*/int step,
    const BackwardParams& p, unsigned shared) {
  float* sums = p.dq_sum + 4ull * place;
  mbarrier_wait(shared + kMayAdd + 8 * (step & 1), step >> 1 & 1);
  if (load_shared(shared + kStores + 4 * (step & 1)) != 0) {
#pragma unroll
    for (int j = 0; j < kDqN / 8; ++j) {
      /*%#past_columns%*/
      if (column + 8 * j >= kHeadDim) break;
      /*%/past_columns%*/
      __stcg(reinterpret_cast<float4*>(sums + 512 * j),
             float4{dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]});
    }
  } else {
#pragma unroll
    for (int j = 0; j < kDqN / 8; ++j) {
      /*%#past_columns%*/
      if (column + 8 * j >= kHeadDim) break;
      /*%/past_columns%*/
      add_global(sums + 512 * j, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
      /*%#pair%*/
      __nanosleep(20);  // or P and dS, in the same pipe, would wait for all additions
      /*%/pair%*/
    }
  }
  __syncwarp();
  arrive_once(shared + kAdded + 8 * (step & 1));
}

// For one thread: tells the consumers at each step of a tile how its share leaves, once it may.
__device__ __forceinline__ void order_shares(const KeyTile& tile, int& step, const BackwardParams& p,
                                             unsigned shared) {
  add_in_order(tile, step, p, [&](int* shares, int, int, const auto& comes_first) {
    /*%#claims_ready%*/
    const bool first = comes_first([&] { mbarrier_wait(shared + kDqReady, step & 1); });
    /*%/claims_ready%*/
    /*%^claims_ready%*/
    const bool first = comes_first();
    /*%/claims_ready%*/
    store_shared(shared + kStores + 4 * (step & 1), static_cast<unsigned>(first));
    mbarrier_arrive(shared + kMayAdd + 8 * (step & 1));
    mbarrier_wait(shared + kAdded + 8 * (step & 1), step >> 1 & 1);
    note_share(shares, first);
  });
}
