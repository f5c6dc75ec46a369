// What a warpgroup that owns keys knows in every step.
/*%#dq%*/
// For dQ it shares the dS of a step with the other warpgroup, and adds its part of the dQ of the step before.
/*%/dq%*/
#pragma once
#include "params/backward.h"
/*%#dq%*/
#include "parts/anew.cuh"
#include "parts/wgmma_backward/arrive_written.cuh"
/*%/dq%*/
#include "parts/wgmma_backward/layout.cuh"
#include "parts/wgmma_backward/panels.cuh"
/*%#dq%*/
#include "parts/wgmma_backward/products.cuh"
/*%/dq%*/
/*%#dq_direct%*/
#include "parts/wgmma_backward/shares.cuh"
/*%/dq_direct%*/
/*%#dq_staged%*/
#include "parts/wgmma_backward/staged_shares.cuh"
/*%/dq_staged%*/
/*%#dq%*/
#include "ptx/mbarrier.cuh"
/*%^dq_transposed%*/
#include "ptx/stmatrix.cuh"
/*%/dq_transposed%*/
/*%/dq%*/
/*%#dq_transposed%*/
#include "ptx/stmatrix_transposed.cuh"
/*%/dq_transposed%*/
/*%#dq%*/
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_group.cuh"
/*%/dq%*/

struct KeyState {
  const BackwardParams& params;
  const unsigned shared;
  const int warpgroup;      // 0 or 1
  const unsigned fragment;  // bytes to this lane's piece of the warpgroup's rows
  int step = 0;             // of the CTA, over all its tiles: it says which stage, and which parity
  int round = 0;            // tiles so far

  unsigned ds[kTileM / 4];  // of the step, transposed, as pairs
  /*%#dq%*/
  float dq[kDqN / 2];
  /*%/dq%*/
  /*%#dq_direct%*/
  unsigned place = 0;  // where the dQ of the step before belongs
  /*%/dq_direct%*/

  __device__ __forceinline__ KeyState(const BackwardParams& parameters, unsigned shared_memory, int number)
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
  /*%/dq%*/

  /*%#dq_direct%*/
  __device__ __forceinline__ void add_dq() const {
    leave_share(dq, place, /*%#past_columns%*/64 * warpgroup, /*%/past_columns%*/step - 1, params, shared);
  }
  /*%/dq_direct%*/
  /*%#dq_staged%*/
  __device__ __forceinline__ void add_dq() const { stage_share(dq, warpgroup, step - 1, shared); }
  /*%/dq_staged%*/
};
