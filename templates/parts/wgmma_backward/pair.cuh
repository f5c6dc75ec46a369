// dQ where two CTAs of a cluster work on a tile, with 64 keys each and the same queries. A third warpgroup
// in each CTA sums half of dQ's columns. For them it gets the other CTA's dS, and it already has the same columns
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
#include "ptx/cluster.cuh"
#include "ptx/cluster_arrive_read.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mbarrier_bytes.cuh"
#include "ptx/pin.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_group.cuh"

struct QueryOwner {
  static constexpr unsigned kPanelBytes = kTileN * kRowBytes;

  const BackwardParams& params;
  const unsigned shared;
  const int rank;
  int step = 0;   // of the CTA, over all its tiles
  int round = 0;  // tiles so far

  float dq[kDqN / 2];
  /*%#dq_staged%*/
  float dq_rest[kDqRestN / 2];
  /*%/dq_staged%*/

  __device__ __forceinline__ QueryOwner(const BackwardParams& parameters, unsigned shared_memory)
      : params(parameters), shared(shared_memory), rank(cluster_rank()) {}

  // dQ from the keys of one CTA: their dS times some columns of theirs, in panels that lie `apart` bytes
  // apart. `first`: d begins with it.
  template <auto kBegin, auto kAdd, int kCount>
  __device__ __forceinline__ void issue(float (&d)[kCount], unsigned ds_tile, unsigned columns,
                                        unsigned apart, bool first) {
    const unsigned long long a = wgmma_descriptor(ds_tile, 0), b = wgmma_descriptor(columns, apart);
    wgmma_fence();
    if (first) kBegin(d, a, b);
#pragma unroll
    for (int i = first ? 1 : 0; i < kTileN / 16; ++i) kAdd(d, a + i * kSixteenRows, b + i * kSixteenRows);
    wgmma_commit();
  }

  /*%#dq_direct%*/
  // One product for both panels.
  __device__ __forceinline__ void issue_all(unsigned ds_tile, unsigned panels, bool first) {
    issue<wgmma_dq_first, wgmma_dq_next>(dq, ds_tile, panels, kPanelBytes, first);
  }
  /*%/dq_direct%*/
  /*%#dq_staged%*/
  // A product for a panel, and one for the rest, so that the panel can leave meanwhile.
  __device__ __forceinline__ void issue_all(unsigned ds_tile, unsigned panels, bool first) {
    // The first CTA has all of its first panel, the second CTA all of its second one. The other panel is the
    // other CTA's, too, where K has three: then each has half of it.
    const unsigned panel = rank * kPanelBytes;
    const unsigned rest = (rank ^ 1) * kPanelBytes + rank * (kRowBytes - 2 * kDqRestN);
    issue<wgmma_dq_first, wgmma_dq_next>(dq, ds_tile, panels + panel, 0, first);
    issue<wgmma_dq_rest_first, wgmma_dq_rest_next>(dq_rest, ds_tile, panels + rest, 0, first);
  }
  /*%/dq_staged%*/

  /*%#dq_direct%*/
  // `row` is the first row of the step's queries in dQ's sums.
  /*%/dq_direct%*/
  __device__ __forceinline__ void compute_step(/*%#dq_direct%*/unsigned row/*%/dq_direct%*/) {
    const int first_panel = rank * (kPanelsQk - kDqPanels);
    const int stage = step % kExchangeStages;
    const unsigned ds_tile = shared + kExchange + stage * kDsBytes;
    const unsigned exchange_empty = shared + kExchangeEmpty + 8 * stage;
    if (threadIdx.x % 128 == 0) mbarrier_arrive_expecting(shared + kOtherDsFull, kDsBytes);
    __syncwarp();
    mbarrier_wait(shared + kDsFull + 8 * stage, step / kExchangeStages & 1);
    issue_all(ds_tile, shared + kK + first_panel * kPanelBytes, true);
    mbarrier_wait(shared + kOtherDsFull, step & 1);
    // The other CTA's dS has been copied.
    if (threadIdx.x % 128 == 0) cluster_arrive_read(in_cta(rank ^ 1, exchange_empty));
    __syncwarp();
    issue_all(shared + kOtherDs, shared + kOtherK, false);
    /*%#dq_direct%*/
    wgmma_wait<1>();
    arrive_once(exchange_empty);
    wgmma_wait<0>();
    pin(dq);
    if (lane() == 0) cluster_arrive_read(in_cta(rank ^ 1, shared + kOtherDsEmpty));
    /*%#dq_ready%*/
    arrive_once(shared + kDqReady);
    // Each phase has to be seen by someone, and if a first share has left already, nobody else waits.
    mbarrier_wait(shared + kDqReady, step & 1);
    /*%/dq_ready%*/
    const unsigned place = row * (kHeadDim / 4) + first_panel * (64 / 8) * 128 + threadIdx.x % 128;
    leave_share(dq, place, /*%#past_columns%*/64 * first_panel, /*%/past_columns%*/step, params, shared);
    /*%/dq_direct%*/
    /*%#dq_staged%*/
    wgmma_wait<2>();
    arrive_once(exchange_empty);
    wgmma_wait<1>();
    pin(dq);
    stage_share(dq, 0, step, shared);
    wgmma_wait<0>();
    pin(dq_rest);
    if (lane() == 0) cluster_arrive_read(in_cta(rank ^ 1, shared + kOtherDsEmpty));
    stage_share(dq_rest, 1, step, shared);
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
