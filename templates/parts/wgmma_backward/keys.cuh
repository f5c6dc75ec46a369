// A consumer: a warpgroup that owns 64 keys of a tile, sums their dK and dV over all queries that see them,
// and adds its share of dQ. Everything is transposed, with a row per key, so that the registers of P and dS
// are what the products for dV and dK take.
#pragma once
#include "params/backward.h"
#include "parts/anew.cuh"
/*%#diagonal%*/
#include "parts/diagonal.cuh"
/*%/diagonal%*/
#include "parts/wgmma_backward/arrive_written.cuh"
#include "parts/wgmma_backward/chains.cuh"
#include "parts/wgmma_backward/layout.cuh"
#include "parts/wgmma_backward/scores.cuh"
/*%#dq_direct%*/
#include "parts/wgmma_backward/shares.cuh"
/*%/dq_direct%*/
/*%#dq_staged%*/
#include "parts/wgmma_backward/staged_shares.cuh"
/*%/dq_staged%*/
#include "parts/wgmma_backward/tiles.cuh"
#include "ptx/mbarrier.cuh"
/*%#turns%*/
#include "ptx/named_barrier.cuh"
#include "ptx/named_barrier_arrive.cuh"
/*%/turns%*/
#include "ptx/stmatrix.cuh"
/*%#dq_transposed%*/
#include "ptx/pin.cuh"
#include "ptx/stmatrix_transposed.cuh"
/*%/dq_transposed%*/
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_group.cuh"

struct KeyOwner {
  const BackwardParams& params;
  const unsigned shared;
  const int warpgroup;      // 0 or 1
  const unsigned fragment;  // bytes to this lane's piece of the warpgroup's rows
  int step = 0;             // of the CTA, over all its tiles: it says which stage, and which parity
  int round = 0;            // tiles so far

  float dk[kHeadDim / 2];
  float dv[kHeadDimV / 2];
  unsigned p[kTileM / 4];   // of the step, transposed, as pairs
  unsigned ds[kTileM / 4];  // likewise
  /*%#dq%*/
  float dq[kDqN / 2];
  /*%/dq%*/
  /*%#dq_direct%*/
  unsigned place = 0;  // where the dQ of the step before belongs
  /*%/dq_direct%*/

  __device__ __forceinline__ KeyOwner(const BackwardParams& parameters, unsigned shared_memory, int number)
      : params(parameters),
        shared(shared_memory),
        warpgroup(number),
        fragment(fragment_offset(64 * number)) {}

  __device__ __forceinline__ unsigned k_tile() const { return shared + kK + round % kKeyStages * kKBytes; }
  __device__ __forceinline__ unsigned v_tile() const { return shared + kV + round % kKeyStages * kVBytes; }

  __device__ __forceinline__ unsigned rows_of(unsigned tile) const {
    return tile + warpgroup * 64 * kRowBytes;
  }

  /*%#dq%*/
  // Shares both warpgroups' dS of a step, for dQ one step later.
  __device__ __forceinline__ void share_ds(int stage) {
    // The very first step finds its stage empty; the other stage has the zeros that count as step -1's dS.
    mbarrier_wait(shared + kExchangeEmpty + 8 * stage, (step >> 1 & 1) ^ 1 ^ stage);
    const unsigned to = shared + kExchange + stage * kDsBytes;
    /*%^dq_transposed%*/
    // Worked out again at each step: kept for the loop, its eight places would stay in registers.
    const unsigned piece = static_cast<unsigned>(anew(static_cast<int>(fragment)));
#pragma unroll
    for (int i = 0; i < kTileM / 16; ++i) {
      stmatrix(to + at_column_step<kTileN>(piece, i), ds[4 * i], ds[4 * i + 1], ds[4 * i + 2], ds[4 * i + 3]);
    }
    /*%/dq_transposed%*/
    /*%#dq_transposed%*/
    // One row per query; this warpgroup's keys are in a panel of their own.
    const int thread = anew(lane());
    const unsigned piece = to + warpgroup * kTileM * kRowBytes + (thread / 16 * 8 + thread % 8) * kRowBytes +
                           ((2 * warp_of_warpgroup() + thread / 8 % 2) ^ thread % 8) * 16;
#pragma unroll
    for (int i = 0; i < kTileM / 16; ++i) {
      stmatrix_transposed(piece + 16 * i * kRowBytes, ds[4 * i], ds[4 * i + 1], ds[4 * i + 2], ds[4 * i + 3]);
    }
    /*%/dq_transposed%*/
    arrive_written(shared + kExchangeFull + 8 * stage);
  }

  // dQ of the step before: this warpgroup's 64 queries, or its 64 columns where there are fewer queries. A
  // tile's first step multiplies what is there and drops the result: with a branch here, ptxas would wait for
  // every product right away (its warning C7514).
  __device__ __forceinline__ void issue_dq(int before) {
    const int stage = before & 1;
    mbarrier_wait(shared + kExchangeFull + 8 * stage, before >> 1 & 1);
    const unsigned ds_tile = shared + kExchange + stage * kDsBytes, keys = k_tile();
    const unsigned panel = warpgroup * kTileN * kRowBytes;
    /*%^dq_transposed%*/
    const unsigned long long a = wgmma_descriptor(kTileM == 128 ? ds_tile + panel : ds_tile, 0);
    const unsigned long long b = wgmma_descriptor(kTileM == 128 ? keys : keys + panel, 0);
    wgmma_fence();
    wgmma_dq_first(dq, a, b);
#pragma unroll
    for (int i = 1; i < kTileN / 16; ++i) wgmma_dq_next(dq, a + i * kSixteenRows, b + i * kSixteenRows);
    /*%/dq_transposed%*/
    /*%#dq_transposed%*/
    const unsigned long long a = wgmma_descriptor(keys + panel, 0), b = wgmma_descriptor(ds_tile, 0);
    wgmma_fence();
    wgmma_dq_first(dq, a, b);
#pragma unroll
    for (int i = 1; i < kTileN / 16; ++i) wgmma_dq_next(dq, a + i * kSixteenRows, b + column_step<kTileM>(i));
    /*%/dq_transposed%*/
    wgmma_commit();
  }

  __device__ __forceinline__ void add_dq() const {
    /*%#dq_direct%*/
    leave_share(dq, place, 64 * warpgroup, step - 1, params, shared);
    /*%/dq_direct%*/
    /*%#dq_staged%*/
    stage_share(dq, warpgroup, step - 1, shared);
    /*%/dq_staged%*/
  }
  /*%/dq%*/

  // One step: S, while the queries' statistics are read; dP, beside the exponentials; then dS and the
  // gradients. `first` marks the tile's first step, before which there is no dQ.
  __device__ __forceinline__ void compute_step(int first_key, int query, bool first) {
    const int stage = step & 1, parity = step >> 1 & 1;
    float s[kTileM / 2], dp[kTileM / 2];
    mbarrier_wait(shared + kQFull + 8 * stage, parity);
    const unsigned q = shared + kQ + stage * kQBytes, dout = shared + kDo + stage * kDoBytes;
    issue_scores<kHeadDim, kTileN, kTileM>(s, rows_of(k_tile()), q);
    mbarrier_wait(shared + kDoFull + 8 * stage, parity);
    /*%^dq_staged%*/
    Statistics lse, delta;
    load_statistics(delta, shared + kDelta + stage * kRowStatistics);
    load_statistics(lse, shared + kLse + stage * kRowStatistics);
    wgmma_wait<0>();
    pin(s);
    pin(dk);
    pin(ds);
    if (!first) release_step(stage ^ 1);
    begin_gradient(dp, delta);
    issue_scores<kHeadDimV, kTileN, kTileM, true>(dp, rows_of(v_tile()), dout);
    /*%/dq_staged%*/
    /*%#dq_staged%*/
    // dK is done, so dP need not wait for S, nor for delta.
    issue_scores<kHeadDimV, kTileN, kTileM>(dp, rows_of(v_tile()), dout);
    Statistics lse;
    load_statistics(lse, shared + kLse + stage * kRowStatistics);
    wgmma_wait<1>();
    pin(s);
    if (!first) release_step(stage ^ 1);
    /*%/dq_staged%*/
    /*%#turns%*/
    take_turn();
    /*%/turns%*/
    if (needs_mask(first_key, query, params)) mask(s, first_key, query, params);
    exponentiate(p, s, lse, params.scale_log2);
    /*%^dq_transposed%*/
    add_gradients(dp, q, dout, first);
    /*%/dq_transposed%*/
    /*%#dq_transposed%*/
    add_gradients_of_80(dp, q, dout, first);
    /*%/dq_transposed%*/
  }

  /*%#turns%*/
  // The warpgroups take turns at the exponentials, so that one's run beside the other's products. Turns order
  // work, not data.
  __device__ __forceinline__ void take_turn() const { named_barrier_sync(1 + warpgroup, 256); }
  __device__ __forceinline__ void pass_turn() const { named_barrier_arrive(2 - warpgroup, 256); }

  /*%/turns%*/
  /*%^dq_transposed%*/
  // dV and the dQ of the step before run while dS is formed. dQ leaves before dK is begun: S takes dQ's
  // registers next, and must wait until these have been read, which takes the additions several hundred
  // clocks.
  __device__ __forceinline__ void add_gradients(float (&dp)[kTileM / 2], unsigned q, unsigned dout,
                                                bool/*%#dq%*/ first/*%/dq%*/) {
    issue_gradient_v<kTileM>(dv, p, dout);
    /*%#turns%*/
    pass_turn();
    /*%/turns%*/
    /*%#dq%*/
    issue_dq(step - 1);
    wgmma_wait<1>();  // P, which dV multiplies, may be read again only now
    /*%/dq%*/
    /*%^dq%*/
    wgmma_wait<0>();
    /*%/dq%*/
    pin(dp);
    pin(dv);
    pin(p);
    differentiate(ds, p, dp);
    /*%#dq%*/
    share_ds(step & 1);
    wgmma_wait<0>();
    pin(dq);
    arrive_once(shared + kExchangeEmpty + 8 * ((step & 1) ^ 1));
    /*%/dq%*/
    /*%#dq_sums%*/
    if (!first) add_dq();
    /*%/dq_sums%*/
    issue_gradient_qk<kTileM>(dk, ds, q);
    /*%#dq_ordered%*/
    if (!first) add_dq();  // dK need not wait for the order
    /*%/dq_ordered%*/
  }
  /*%/dq_transposed%*/

  /*%#dq_transposed%*/
  // 80 queries leave no registers for dQ beside dP, nor for S beside dK. So dS is formed while dV runs, from
  // a copy of P (registers that a product reads may not be read meanwhile), and dQ of the step before comes
  // with dK.
  __device__ __forceinline__ void add_gradients_of_80(float (&dp)[kTileM / 2], unsigned q, unsigned dout,
                                                      bool first) {
    unsigned copy[kTileM / 4];
#pragma unroll
    for (int i = 0; i < kTileM / 4; ++i) copy[i] = p[i];
    issue_gradient_v<kTileM>(dv, p, dout);
    /*%#turns%*/
    pass_turn();
    /*%/turns%*/
    /*%#dq_staged%*/
    Statistics delta;
    load_statistics(delta, shared + kDelta + (step & 1) * kRowStatistics);
    /*%/dq_staged%*/
    wgmma_wait<1>();
    pin(dp);
    /*%#dq_staged%*/
    subtract(dp, delta);
    /*%/dq_staged%*/
    differentiate(ds, copy, dp);
    share_ds(step & 1);
    issue_dq(step - 1);
    issue_gradient_qk<kTileM>(dk, ds, q);
    wgmma_wait<1>();
    pin(dv);
    pin(p);
    pin(dq);
    arrive_once(shared + kExchangeEmpty + 8 * ((step & 1) ^ 1));
    if (!first) add_dq();
    wgmma_wait<0>();
    pin(dk);
    pin(ds);
  }
  /*%/dq_transposed%*/

  /*%#diagonal%*/
  // A tile's first step, where its queries see none of this warpgroup's keys: it only shares zeros as its dS.
  __device__ __forceinline__ void skip_first_step() {
    const int stage = step & 1, parity = step >> 1 & 1;
    // Without these, a later wait would take this step's phase for its own.
    mbarrier_wait(shared + kQFull + 8 * stage, parity);
    mbarrier_wait(shared + kDoFull + 8 * stage, parity);
    /*%#turns%*/
    take_turn();
    pass_turn();
    /*%/turns%*/
#pragma unroll
    for (int i = 0; i < kTileM / 4; ++i) ds[i] = 0;
    /*%#dq%*/
    share_ds(stage);
    arrive_once(shared + kExchangeEmpty + 8 * (stage ^ 1));
    /*%/dq%*/
  }
  /*%/diagonal%*/

  // Gives back Q and dO of a step, once products have read them, and every lane the statistics.
  __device__ __forceinline__ void release_step(int stage) const {
    /*%^dq%*/
    __syncwarp();
    /*%/dq%*/
    arrive_once(shared + kQEmpty + 8 * stage);
    arrive_once(shared + kDoEmpty + 8 * stage);
  }

  __device__ __forceinline__ void compute(const KeyTile& tile) {
    clear(dk);
    clear(dv);
    mbarrier_wait(shared + kKFull + 8 * (round % kKeyStages), round / kKeyStages % 2);
    mbarrier_wait(shared + kVFull + 8 * (round % kKeyStages), round / kKeyStages % 2);

    const int first_key = tile.key + 64 * warpgroup;
    bool first = true;
    int m = tile.starts_at(), left = tile.steps(params);
    /*%#dq_direct%*/
    place = (tile.first_row(params) + m * kTileM) * (kHeadDim / 4) +
            warpgroup * 16 * (kTileM == 128 ? kHeadDim : kTileM) + threadIdx.x % 128;
    /*%/dq_direct%*/
    /*%#diagonal%*/
    // Only a group's first head skips this step; later heads compute it in vain. Here no product is under
    // way; with a branch there, ptxas would wait for every product right away (its warning C7514).
    if (left > 0 && m * kTileM + kTileM + diagonal(params) <= first_key) {
      skip_first_step();
      first = false;
      ++step;
      --left;
      tile.advance(m);
    }
    /*%/diagonal%*/
#pragma unroll 1
    for (; left > 0; --left) {
      compute_step(first_key, m * kTileM, first);
      /*%#dq_direct%*/
      if (!first) {
        place += kTileM * kHeadDim / 4;
        if (m == tile.first_step) place -= (tile.end_step - m) * (kTileM * kHeadDim / 4);
        // On to the group's next head.
        if (m == tile.starts_at()) place += params.padded_q * (kHeadDim / 4);
      }
      /*%/dq_direct%*/
      first = false;
      ++step;
      tile.advance(m);
    }
    wgmma_wait<0>();
    pin(dk);
    pin(dv);
    if (!first) release_step((step - 1) & 1);
    /*%#dq%*/
    issue_dq(step - 1);
    /*%/dq%*/
    // The products that read V are complete, and a warp's rows of dV lie where its own rows of V were.
    stage_gradient<kTileN>(dv, v_tile(), fragment, 1.0f);
    arrive_written(shared + kDvStaged + 8 * (round % kKeyStages));
    /*%#dq%*/
    wgmma_wait<0>();
    pin(dq);
    if (!first) add_dq();
    arrive_once(shared + kKRead);
    mbarrier_wait(shared + kKRead, round % 2);
    /*%/dq%*/
    stage_gradient<kTileN>(dk, k_tile(), fragment, params.scale);
    arrive_written(shared + kDkStaged + 8 * (round % kKeyStages));
  }

  __device__ __forceinline__ void run() {
    /*%#turns%*/
    if (warpgroup == 1) pass_turn();  // warpgroup 0 goes first
      /*%/turns%*/
#pragma unroll 1
    for (;; ++round) {
      const int index = read_ticket_together(shared, round);
      if (index < 0) break;
      compute(tile_at(index, params));
    }
    /*%#turns%*/
    if (warpgroup == 0) take_turn();  // and takes the last arrival
    /*%/turns%*/
  }
};
