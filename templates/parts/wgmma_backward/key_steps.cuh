// The steps of a warpgroup that owns keys: each adds the products of kTileM queries to dK and dV. Everything
// is transposed, with a row per key, so that the registers of P and dS are what the products for dV and dK
// take.
#pragma once
#include "params/backward.h"
#include "parts/wgmma_backward/chains.cuh"
#include "parts/wgmma_backward/key_state.cuh"
#include "parts/wgmma_backward/layout.cuh"
#include "parts/wgmma_backward/panels.cuh"
#include "parts/wgmma_backward/scores.cuh"
#include "ptx/mbarrier.cuh"
/*%#turns%*/
#include "ptx/named_barrier.cuh"
#include "ptx/named_barrier_arrive.cuh"
/*%/turns%*/
/*%#ds_under_dv%*/
#include "ptx/pin.cuh"
#include "ptx/pin_fragment.cuh"
/*%/ds_under_dv%*/
#include "ptx/wgmma.cuh"

struct KeySteps : KeyState {
  float dk[kHeadDim / 2];
  float dv[kHeadDimV / 2];
  unsigned p[kTileM / 4];  // of the step, transposed, as pairs

  using KeyState::KeyState;

  // One step: S, while the queries' statistics are read; dP, beside the exponentials; then dS and the
  // gradients. `first` marks the tile's first step, which has none before it.
  __device__ __forceinline__ void compute_step(int first_key, int query, bool first) {
    const int stage = step & 1, parity = step >> 1 & 1;
    float s[kTileM / 2], dp[kTileM / 2];
    mbarrier_wait(shared + kQFull + 8 * stage, parity);
    const unsigned q = shared + kQ + stage * kQBytes, dout = shared + kDo + stage * kDoBytes;
    issue_scores<kHeadDim, kTileN, kTileM>(s, rows_of(k_tile()), q);
    mbarrier_wait(shared + kDoFull + 8 * stage, parity);
    /*%^dp_early%*/
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
    /*%/dp_early%*/
    /*%#dp_early%*/
    // dK is done, so dP need not wait for S, nor for delta.
    issue_scores<kHeadDimV, kTileN, kTileM>(dp, rows_of(v_tile()), dout);
    Statistics lse;
    load_statistics(lse, shared + kLse + stage * kRowStatistics);
    wgmma_wait<1>();
    pin(s);
    if (!first) release_step(stage ^ 1);
    /*%/dp_early%*/
    /*%#turns%*/
    take_turn();
    /*%/turns%*/
    if (needs_mask(first_key, query, params)) mask(s, first_key, query, params);
    exponentiate(p, s, lse, params.scale_log2);
    add_gradients(dp, q, dout, first);
  }

  /*%#turns%*/
  // The warpgroups take turns at the exponentials, so that one's run beside the other's products. Turns order
  // work, not data.
  __device__ __forceinline__ void take_turn() const { named_barrier_sync(1 + warpgroup, 256); }
  __device__ __forceinline__ void pass_turn() const { named_barrier_arrive(2 - warpgroup, 256); }

  /*%/turns%*/
  /*%^ds_under_dv%*/
  // dV and the dQ of the step before run while dS is formed.
  /*%#dq_before_dk%*/
  // dQ leaves before dK is begun: S takes dQ's registers next, and must wait until these have been read,
  // which takes the additions several hundred clocks.
  /*%/dq_before_dk%*/
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
    /*%#dq_before_dk%*/
    if (!first) add_dq();
    /*%/dq_before_dk%*/
    issue_gradient_qk<kTileM>(dk, ds, q);
    /*%#dq_after_dk%*/
    if (!first) add_dq();  // what dQ waits for, dK need not wait for
    /*%/dq_after_dk%*/
  }
  /*%/ds_under_dv%*/

  /*%#ds_under_dv%*/
  // dS is formed while dV runs, from a copy of P (registers that a product reads may not be read meanwhile),
  // and dQ of the step before comes with dK.
  __device__ __forceinline__ void add_gradients(float (&dp)[kTileM / 2], unsigned q, unsigned dout,
                                                bool first) {
    unsigned copy[kTileM / 4];
#pragma unroll
    for (int i = 0; i < kTileM / 4; ++i) copy[i] = p[i];
    issue_gradient_v<kTileM>(dv, p, dout);
    /*%#turns%*/
    pass_turn();
    /*%/turns%*/
    /*%#dp_early%*/
    Statistics delta;
    load_statistics(delta, shared + kDelta + (step & 1) * kRowStatistics);
    /*%/dp_early%*/
    wgmma_wait<1>();
    pin(dp);
    /*%#dp_early%*/
    subtract(dp, delta);
    /*%/dp_early%*/
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
    /*%#dq_transposed%*/
    // 80 queries leave no registers for S beside dK.
    wgmma_wait<0>();
    pin(dk);
    pin(ds);
    /*%/dq_transposed%*/
  }
  /*%/ds_under_dv%*/

  /*%#diagonal%*/
  // A tile's first step, where its queries see none of this warpgroup's keys.
  /*%#dq%*/
  // It only shares zeros as its dS.
  /*%/dq%*/
  __device__ __forceinline__ void skip_first_step() {
    const int stage = step & 1, parity = step >> 1 & 1;
    // Without these, a later wait would take this step's phase for its own.
    mbarrier_wait(shared + kQFull + 8 * stage, parity);
    mbarrier_wait(shared + kDoFull + 8 * stage, parity);
    /*%#turns%*/
    take_turn();
    pass_turn();
    /*%/turns%*/
    /*%#dq%*/
#pragma unroll
    for (int i = 0; i < kTileM / 4; ++i) ds[i] = 0;
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
};
