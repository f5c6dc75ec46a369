// dQ where two CTAs of a cluster work on a tile, with 64 keys each and the same queries. A third consumer in
// each CTA has half of dQ's columns. For them it gets the other CTA's dS, and it already has the same columns
// of the other CTA's keys.
#pragma once
#include "params/backward.h"
#include "parts/wgmma_backward/layout.cuh"
#include "parts/wgmma_backward/products.cuh"
/*%#dq_direct%*/
#include "parts/wgmma_backward/shares.cuh"
/*%/dq_direct%*/
/*%#dq_staged%*/
#include "parts/wgmma_backward/staged_shares.cuh"
/*%/dq_staged%*/
#include "parts/wgmma_backward/tiles.cuh"
#include "ptx/bulk_send.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cluster_arrive_read.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mbarrier_bytes.cuh"
#include "ptx/pin.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_group.cuh"

struct QueryOwner {
  const BackwardParams& params;
  const unsigned shared;
  const int rank;
  int step = 0;   // of the CTA, over all its tiles
  int round = 0;  // tiles so far

  float dq[kDqN / 2];

  __device__ __forceinline__ QueryOwner(const BackwardParams& parameters, unsigned shared_memory)
      : params(parameters), shared(shared_memory), rank(cluster_rank()) {}

  // Sends a copy of this CTA's dS to the other CTA, once its place there is free, and expects the other CTA's
  // dS.
  __device__ __forceinline__ void swap_ds() const {
    if (threadIdx.x % 128 == 0) {
      mbarrier_arrive_expecting(shared + kOtherDsFull, kDsBytes);
      mbarrier_wait(shared + kOtherDsEmpty, (step & 1) ^ 1);
      const int other = rank ^ 1;
      bulk_send(in_cta(other, shared + kOtherDs), shared + kExchange, kDsBytes,
                in_cta(other, shared + kOtherDsFull));
    }
    __syncwarp();
  }

  // dQ from the keys of one CTA: their dS times two panels of their columns, which lie `apart` bytes apart.
  __device__ __forceinline__ void issue(unsigned ds_tile, unsigned panels, unsigned apart, bool first) {
    const unsigned long long a = wgmma_descriptor(ds_tile, 0), b = wgmma_descriptor(panels, apart);
    wgmma_fence();
    if (first) wgmma_dq_first(dq, a, b);
#pragma unroll
    for (int i = first ? 1 : 0; i < kTileN / 16; ++i) {
      wgmma_dq_next(dq, a + i * kSixteenRows, b + i * kSixteenRows);
    }
    wgmma_commit();
  }

  /*%#dq_direct%*/
  // `row` is the first row of the step's queries in dQ's sums.
  /*%/dq_direct%*/
  __device__ __forceinline__ void compute_step(/*%#dq_direct%*/unsigned row/*%/dq_direct%*/) {
    constexpr unsigned kPanelBytes = kTileN * kRowBytes;
    const int first_panel = rank * kDqPanels;
    // Where there is no second panel, the first stands in for it: nobody looks at the result.
    const unsigned apart = first_panel + 1 < kPanelsQk ? kPanelBytes : 0;
    mbarrier_wait(shared + kDsFull, step & 1);
    swap_ds();
    issue(shared + kExchange, shared + kK + first_panel * kPanelBytes, apart, true);
    mbarrier_wait(shared + kOtherDsFull, step & 1);
    // The other CTA's dS has been copied.
    if (threadIdx.x % 128 == 0) cluster_arrive_read(in_cta(rank ^ 1, shared + kExchangeEmpty));
    __syncwarp();
    issue(shared + kOtherDs, shared + kOtherK, kPanelBytes, false);
    wgmma_wait<1>();
    arrive_once(shared + kExchangeEmpty);
    wgmma_wait<0>();
    pin(dq);
    if (lane() == 0) cluster_arrive_read(in_cta(rank ^ 1, shared + kOtherDsEmpty));
    /*%#dq_direct%*/
    const unsigned place = row * (kHeadDim / 4) + first_panel * (64 / 8) * 128 + threadIdx.x % 128;
    leave_share(dq, place, 64 * first_panel, step, params, shared);
    /*%/dq_direct%*/
    /*%#dq_staged%*/
    stage_share(dq, 0, step, shared);
    /*%/dq_staged%*/
    ++step;
  }

  __device__ __forceinline__ void compute(const KeyTile& tile) {
    mbarrier_wait(shared + kKFull, round % 2);
    /*%#dq_direct%*/
    int m = tile.starts_at();
    unsigned head_row = tile.first_row(params);
#pragma unroll 1
    for (int left = tile.steps(params); left > 0; --left) {
      compute_step(head_row + m * kTileM);
      if (tile.advance(m)) head_row += params.padded_q;
    }
    /*%/dq_direct%*/
    /*%#dq_staged%*/
#pragma unroll 1
    for (int left = tile.steps(params); left > 0; --left) compute_step();
    /*%/dq_staged%*/
    arrive_once(shared + kKRead);
  }
};
