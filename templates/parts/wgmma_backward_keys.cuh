// A consumer: a warpgroup that owns 64 keys of a tile, sums their dK and dV over all queries that see them,
// and adds its share of dQ. Everything is transposed, a row a key, so that P and dS are in registers what dV
// and dK multiply.
#pragma once
#include "params/backward.h"
#include "parts/wgmma_backward_layout.cuh"
#include "parts/wgmma_backward_products.cuh"
#include "parts/wgmma_backward_tiles.cuh"
#include "ptx/convert.cuh"
#include "ptx/math.cuh"
#include "ptx/mbarrier.cuh"
/*%#turns%*/
#include "ptx/named_barrier.cuh"
/*%/turns%*/
/*%#dq%*/
#include "ptx/reduction.cuh"
/*%/dq%*/
#include "ptx/shared_pair.cuh"
#include "ptx/unpack.cuh"
#include "ptx/wgmma.cuh"

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
  unsigned ds[kTileM / 4];  // likewise; without the scale, which dK and dQ get at the end
  /*%#dq%*/
  float dq[kDqColumns / 2];
  /*%/dq%*/

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

  // s = this warpgroup's rows of K times the rows of Q, summed over their columns.
  template <int kSteps>
  __device__ __forceinline__ void issue_scores(float (&s)[kTileM / 2], unsigned rows,
                                               unsigned columns) const {
    const unsigned long long a = wgmma_descriptor(rows, 0), b = wgmma_descriptor(columns, 0);
    wgmma_fence();
    wgmma_scores_first(s, a, b);
#pragma unroll
    for (int i = 1; i < kSteps; ++i) {
      wgmma_scores_next(s, a + column_step<kTileN>(i), b + column_step<kTileM>(i));
    }
    wgmma_commit();
  }

  // Hides what causality and the end of the keys hide of a step's scores.
  __device__ __forceinline__ void mask(float (&s)[kTileM / 2], int first_key, int query) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int key = first_key + 16 * warp_of_warpgroup() + lane() / 4 + 8 * row;
      // The first query that sees the key, counted from this thread's first one.
      int first = -2 * (lane() % 4);
      /*%#causal%*/
      first += key + params.seqlen_q - params.seqlen_k - query;
      /*%/causal%*/
      if (key >= params.seqlen_k) first = kTileM;
#pragma unroll
      for (int i = 0; i < kTileM / 4; ++i) {
        if (i / 2 * 8 + i % 2 < first) s[i / 2 * 4 + 2 * row + i % 2] = -kInfinity;
      }
    }
  }

  // P = exp(S - LSE), kept as pairs.
  __device__ __forceinline__ void exponentiate(float (&s)[kTileM / 2], int stage) {
    const unsigned lse = shared + kLse + stage * kRowStatistics + 8 * (lane() % 4);
    const float scale = params.scale_log2;
#pragma unroll
    for (int j = 0; j < kTileM / 8; ++j) {
      const float2 shift = load_pair(lse + 32 * j);
      p[2 * j] = pack(exp2_fast(s[4 * j] * scale - shift.x), exp2_fast(s[4 * j + 1] * scale - shift.y));
      p[2 * j + 1] =
          pack(exp2_fast(s[4 * j + 2] * scale - shift.x), exp2_fast(s[4 * j + 3] * scale - shift.y));
    }
  }

  // dS = P (dP - delta), with P as it was rounded: its scores are gone from the registers.
  __device__ __forceinline__ void differentiate(const float (&dp)[kTileM / 2], int stage) {
    const unsigned deltas = shared + kDelta + stage * kRowStatistics + 8 * (lane() % 4);
#pragma unroll
    for (int j = 0; j < kTileM / 8; ++j) {
      const float2 delta = load_pair(deltas + 32 * j);
      ds[2 * j] =
          pack(low_half(p[2 * j]) * (dp[4 * j] - delta.x), high_half(p[2 * j]) * (dp[4 * j + 1] - delta.y));
      ds[2 * j + 1] = pack(low_half(p[2 * j + 1]) * (dp[4 * j + 2] - delta.x),
                           high_half(p[2 * j + 1]) * (dp[4 * j + 3] - delta.y));
    }
  }

  __device__ __forceinline__ void issue_dv(int stage) {
    const unsigned long long dout = wgmma_descriptor(shared + kDo + stage * kDoBytes, kTileM * kRowBytes);
    pin(dv);
    pin(p);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kTileM / 16; ++i) wgmma_gradient_v(dv, p + 4 * i, dout + i * kSixteenRows);
    wgmma_commit();
  }

  __device__ __forceinline__ void issue_dk(int stage) {
    const unsigned long long q = wgmma_descriptor(shared + kQ + stage * kQBytes, kTileM * kRowBytes);
    pin(dk);
    pin(ds);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kTileM / 16; ++i) wgmma_gradient_qk(dk, ds + 4 * i, q + i * kSixteenRows);
    wgmma_commit();
  }

  /*%#dq%*/
  // Both warpgroups' dS of a step, for dQ one step later.
  __device__ __forceinline__ void share_ds(int stage) {
    // The first step of all has the stage to itself, and the stage of zeros counts as step -1's.
    mbarrier_wait(shared + kDsEmpty + 8 * stage, (step >> 1 & 1) ^ 1 ^ stage);
    const unsigned to = shared + kDs + stage * kDsBytes;
#pragma unroll
    for (int i = 0; i < kTileM / 16; ++i) {
      stmatrix(to + at_column_step<kTileN>(fragment, i), ds[4 * i], ds[4 * i + 1], ds[4 * i + 2],
               ds[4 * i + 3]);
    }
    arrive_written(shared + kDsFull + 8 * stage);
  }

  // dQ of the step before: this warpgroup's 64 queries, or its 64 columns where there are but 64 queries. A
  // tile's first step multiplies what is there and drops the result: a branch here would make ptxas wait for
  // every product at once (its warning C7514).
  __device__ __forceinline__ void issue_dq(int before) {
    const int stage = before & 1;
    mbarrier_wait(shared + kDsFull + 8 * stage, before >> 1 & 1);
    const unsigned ds_tile = shared + kDs + stage * kDsBytes, keys = k_tile();
    const unsigned panel = warpgroup * kTileN * kRowBytes;
    const unsigned long long a = wgmma_descriptor(kTileM == 128 ? ds_tile + panel : ds_tile, 0);
    const unsigned long long b = wgmma_descriptor(kTileM == 128 ? keys : keys + panel, 0);
    wgmma_fence();
    wgmma_dq_first(dq, a, b);
#pragma unroll
    for (int i = 1; i < kTileN / 16; ++i) wgmma_dq_next(dq, a + i * kSixteenRows, b + i * kSixteenRows);
    wgmma_commit();
  }

  // dQ's sums lie as accumulators do (kernels/backward_wgmma_sum.cu): 16 bytes a lane, next to each other.
  __device__ __forceinline__ void add_dq(unsigned place) const {
    float* sums = params.dq_sum + 4ull * place;
#pragma unroll
    for (int j = 0; j < kDqColumns / 8; ++j) {
      if (kTileM == 128 || kHeadDim % 64 == 0 || 64 * warpgroup + 8 * j < kHeadDim) {
        add_global(sums + 512 * j, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
      }
    }
  }
  /*%/dq%*/

  // One step: S, then dP under the exponentials, dV and the dQ of the step before under dS, dK under the
  // addition of dQ and under the next step's S.
  __device__ __forceinline__ void compute_step(int key, int query, bool masked, bool first) {
    const int stage = step & 1, parity = step >> 1 & 1;
    float s[kTileM / 2], dp[kTileM / 2];
    mbarrier_wait(shared + kQFull + 8 * stage, parity);
    issue_scores<(kHeadDim + 15) / 16>(s, rows_of(k_tile()), shared + kQ + stage * kQBytes);
    mbarrier_wait(shared + kDoFull + 8 * stage, parity);
    wgmma_wait<0>();
    pin(s);
    pin(dv);
    pin(dk);
    pin(p);
    pin(ds);
    if (!first) release_step(stage ^ 1);
    issue_scores<(kHeadDimV + 15) / 16>(dp, rows_of(v_tile()), shared + kDo + stage * kDoBytes);
    /*%#turns%*/
    named_barrier_sync(1 + warpgroup, 256);
    /*%/turns%*/
    if (masked) mask(s, key, query);
    exponentiate(s, stage);
    issue_dv(stage);
    /*%#turns%*/
    named_barrier_arrive(2 - warpgroup, 256);
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
    differentiate(dp, stage);
    /*%#dq%*/
    share_ds(stage);
    /*%/dq%*/
    issue_dk(stage);
    /*%#dq%*/
    wgmma_wait<1>();
    pin(dq);
    arrive_once(shared + kDsEmpty + 8 * (stage ^ 1));
    /*%/dq%*/
  }

  // Q and dO of a step have been read.
  __device__ __forceinline__ void release_step(int stage) const {
    arrive_once(shared + kQEmpty + 8 * stage);
    arrive_once(shared + kDoEmpty + 8 * stage);
  }

  // Rows of a gradient, scaled, to the place of the rows of K or V.
  template <int kColumns>
  __device__ __forceinline__ void stage_gradient(const float (&d)[kColumns / 2], unsigned tile,
                                                 float scale) const {
#pragma unroll
    for (int i = 0; i < (kColumns + 15) / 16; ++i) {
      stmatrix(tile + at_column_step<kTileN>(fragment, i), scaled_pair(d, 8 * i, scale),
               scaled_pair(d, 8 * i + 2, scale), scaled_pair(d, 8 * i + 4, scale),
               scaled_pair(d, 8 * i + 6, scale));
    }
  }

  __device__ __forceinline__ void compute(const KeyTile& tile) {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) dk[i] = 0;
#pragma unroll
    for (int i = 0; i < kHeadDimV / 2; ++i) dv[i] = 0;
    pin(dk);
    pin(dv);
    mbarrier_wait(shared + kKFull + 8 * (round % kKeyStages), round / kKeyStages % 2);
    mbarrier_wait(shared + kVFull + 8 * (round % kKeyStages), round / kKeyStages % 2);

    const int first_key = tile.key + 64 * warpgroup;
    bool first = true;
    int m = tile.first_step;
    /*%#dq%*/
    // Where the dQ of the step before belongs, in units of 16 bytes: no Hopper has memory for 2^32 of them.
    unsigned sums = (tile.first_row(params) + m * kTileM) * (kHeadDim / 4) +
                    warpgroup * 16 * (kTileM == 128 ? kHeadDim : 64) + threadIdx.x % 128;
    /*%/dq%*/
#pragma unroll 1
    for (int left = tile.steps(params); left > 0; --left) {
      bool masked = first_key + 64 > params.seqlen_k;
      /*%#causal%*/
      masked |= m * kTileM + params.seqlen_k - params.seqlen_q < first_key + 63;
      /*%/causal%*/
      compute_step(first_key, m * kTileM, masked, first);
      /*%#dq%*/
      if (!first) {
        add_dq(sums);
        sums += kTileM * kHeadDim / 4;
        // On to the group's next head.
        if (m == tile.first_step) sums += (params.padded_q + (m - tile.end_step) * kTileM) * (kHeadDim / 4);
      }
      /*%/dq%*/
      first = false;
      ++step;
      if (++m == tile.end_step) m = tile.first_step;
    }
    wgmma_wait<0>();
    pin(dk);
    pin(dv);
    if (!first) release_step((step - 1) & 1);
    /*%#dq%*/
    issue_dq(step - 1);
    /*%/dq%*/
    stage_gradient<kHeadDimV>(dv, v_tile(), 1.0f);
    arrive_written(shared + kDvStaged);
    /*%#dq%*/
    wgmma_wait<0>();
    pin(dq);
    if (!first) add_dq(sums);
    arrive_once(shared + kKRead);
    mbarrier_wait(shared + kKRead, round % 2);
    /*%/dq%*/
    stage_gradient<kHeadDim>(dk, k_tile(), params.scale);
    arrive_written(shared + kDkStaged);
  }

  __device__ __forceinline__ void run() {
    /*%#turns%*/
    if (warpgroup == 1) named_barrier_arrive(1, 256);
      /*%/turns%*/
#pragma unroll 1
    for (;; ++round) {
      const int index = tile_of_round(round, params);
      if (index < 0) break;
      compute(tile_at(index, params));
    }
    /*%#turns%*/
    if (warpgroup == 0) named_barrier_sync(1, 256);
    /*%/turns%*/
  }
};
