// A consumer: a warpgroup that owns 64 keys of a tile, sums their dK and dV over all queries that see them,
// and adds its share of dQ. Everything is transposed, a row a key, so that P and dS are in registers what dV
// and dK multiply.
#pragma once
#include "params/backward.h"
#include "parts/wgmma_backward/chains.cuh"
#include "parts/wgmma_backward/layout.cuh"
#include "parts/wgmma_backward/scores.cuh"
#include "parts/wgmma_backward/tiles.cuh"
#include "ptx/mbarrier.cuh"
/*%#turns%*/
#include "ptx/named_barrier.cuh"
/*%/turns%*/
/*%#dq%*/
#include "ptx/reduction.cuh"
/*%/dq%*/
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
  unsigned ds[kTileM / 4];  // likewise
  /*%#dq%*/
  float dq[kDqColumns / 2];
  // Where the dQ of the step before belongs, in units of 16 bytes: no Hopper has memory for 2^32 of them.
  unsigned place = 0;
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

  /*%#dq%*/
  // Both warpgroups' dS of a step, for dQ one step later.
  __device__ __forceinline__ void share_ds(int stage) {
    // The first step of all has the stage to itself, and the stage of zeros counts as step -1's.
    mbarrier_wait(shared + kExchangeEmpty + 8 * stage, (step >> 1 & 1) ^ 1 ^ stage);
    const unsigned to = shared + kExchange + stage * kDsBytes;
    // Not worked out for the loop: its eight places would stay in registers.
    const unsigned piece = static_cast<unsigned>(anew(static_cast<int>(fragment)));
#pragma unroll
    for (int i = 0; i < kTileM / 16; ++i) {
      stmatrix(to + at_column_step<kTileN>(piece, i), ds[4 * i], ds[4 * i + 1], ds[4 * i + 2], ds[4 * i + 3]);
    }
    arrive_written(shared + kExchangeFull + 8 * stage);
  }

  // dQ of the step before: this warpgroup's 64 queries, or its 64 columns where there are but 64 queries. A
  // tile's first step multiplies what is there and drops the result: a branch here would make ptxas wait for
  // every product at once (its warning C7514).
  __device__ __forceinline__ void issue_dq(int before) {
    const int stage = before & 1;
    mbarrier_wait(shared + kExchangeFull + 8 * stage, before >> 1 & 1);
    const unsigned ds_tile = shared + kExchange + stage * kDsBytes, keys = k_tile();
    const unsigned panel = warpgroup * kTileN * kRowBytes;
    const unsigned long long a = wgmma_descriptor(kTileM == 128 ? ds_tile + panel : ds_tile, 0);
    const unsigned long long b = wgmma_descriptor(kTileM == 128 ? keys : keys + panel, 0);
    wgmma_fence();
    wgmma_dq_first(dq, a, b);
#pragma unroll
    for (int i = 1; i < kTileN / 16; ++i) wgmma_dq_next(dq, a + i * kSixteenRows, b + i * kSixteenRows);
    wgmma_commit();
  }

  // Whether this warpgroup has columns 8j .. 8j + 7 of its accumulators.
  __device__ __forceinline__ bool has_columns(int j) const {
    return kTileM == 128 || kHeadDim % 64 == 0 || 64 * warpgroup + 8 * j < kHeadDim;
  }

  // dQ's sums lie as accumulators do (ptx/wgmma.cuh): 16 bytes a lane, next to each other.
  __device__ __forceinline__ void add_dq() const {
    float* sums = params.dq_sum + 4ull * place;
    /*%#dq_turns%*/
    const int before = step - 1;
    mbarrier_wait(shared + kMayAdd + 8 * (before & 1), before >> 1 & 1);
    const uint4 order = load_shared_16(shared + kOrders + 16 * (before & 1));
    if ((order.x & kConverts) != 0) {
      convert_dq(sums, order);
    } else if ((order.x & kStores) != 0) {
#pragma unroll
      for (int j = 0; j < kDqColumns / 8; ++j) {
        if (has_columns(j)) {
          __stcg(reinterpret_cast<float4*>(sums + 512 * j),
                 float4{dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]});
        }
      }
    } else
    /*%/dq_turns%*/
    {
#pragma unroll
      for (int j = 0; j < kDqColumns / 8; ++j) {
        if (has_columns(j))
          add_global(sums + 512 * j, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
      }
    }
    /*%#dq_turns%*/
    __syncwarp();
    arrive_once(shared + kAdded + 8 * (before & 1));
    /*%/dq_turns%*/
  }

  /*%#dq_turns%*/
  // The last tile's share and all others', scaled and rounded, to dQ.
  __device__ __forceinline__ void convert_dq(const float* sums, const uint4& order) const {
    const int thread = anew(threadIdx.x % 128);
    const int row = (kTileM == 128 ? 64 * warpgroup : 0) + thread / 32 * 16 + thread % 32 / 4;
    const int column = (kTileM == 128 ? 0 : 64 * warpgroup) + 2 * (thread % 4);
    const int rows = static_cast<int>(order.y);
    auto* low = reinterpret_cast<unsigned short*>(static_cast<unsigned long long>(order.w) << 32 | order.z) +
                row * params.dq_row + column;
    unsigned short* high = low + 8 * params.dq_row;
    const bool others = (order.x & kStores) == 0;
    constexpr int kGroups = kDqColumns / 8;
    constexpr int kAtOnce = (kGroups + 1) / 2;  // loads in flight: registers are few
#pragma unroll
    for (int first = 0; first < kGroups; first += kAtOnce) {
      const int end = first + kAtOnce < kGroups ? first + kAtOnce : kGroups;
      float4 sum[kAtOnce];
#pragma unroll
      for (int j = first; j < end; ++j) {
        if (!has_columns(j)) continue;
        sum[j - first] = others ? __ldcg(reinterpret_cast<const float4*>(sums + 512 * j)) : float4{};
      }
#pragma unroll
      for (int j = first; j < end; ++j) {
        if (!has_columns(j)) continue;
        const float4 other = sum[j - first];
        const float scale = params.scale;
        const unsigned upper = pack((other.x + dq[4 * j]) * scale, (other.y + dq[4 * j + 1]) * scale);
        const unsigned lower = pack((other.z + dq[4 * j + 2]) * scale, (other.w + dq[4 * j + 3]) * scale);
        if (row < rows) *reinterpret_cast<unsigned*>(low + 8 * j) = upper;
        if (row + 8 < rows) *reinterpret_cast<unsigned*>(high + 8 * j) = lower;
      }
    }
  }
  /*%/dq_turns%*/
  /*%/dq%*/

  // One step: S, under which the queries' statistics are read; dP under the exponentials; dV and the dQ of
  // the step before under dS. dQ leaves before dK is begun: S takes its registers next, and must wait until
  // they have been read, which additions take several hundred clocks to do.
  __device__ __forceinline__ void compute_step(int first_key, int query, bool first) {
    const int stage = step & 1, parity = step >> 1 & 1;
    float s[kTileM / 2], dp[kTileM / 2];
    mbarrier_wait(shared + kQFull + 8 * stage, parity);
    const unsigned q = shared + kQ + stage * kQBytes, dout = shared + kDo + stage * kDoBytes;
    issue_scores<kHeadDim, kTileN, kTileM>(s, rows_of(k_tile()), q);
    mbarrier_wait(shared + kDoFull + 8 * stage, parity);
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
    /*%#turns%*/
    named_barrier_sync(1 + warpgroup, 256);
    /*%/turns%*/
    if (needs_mask(first_key, query, params)) mask(s, first_key, query, params);
    exponentiate(p, s, lse, params.scale_log2);
    issue_gradient_v<kTileM>(dv, p, dout);
    /*%#short_turns%*/
    named_barrier_arrive(2 - warpgroup, 256);
    /*%/short_turns%*/
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
    /*%#long_turns%*/
    named_barrier_arrive(2 - warpgroup, 256);
    /*%/long_turns%*/
    /*%#dq%*/
    share_ds(stage);
    wgmma_wait<0>();
    pin(dq);
    arrive_once(shared + kExchangeEmpty + 8 * (stage ^ 1));
    /*%^dq_turns%*/
    if (!first) add_dq();
    /*%/dq_turns%*/
    /*%/dq%*/
    issue_gradient_qk<kTileM>(dk, ds, q);
    /*%#dq_turns%*/
    if (!first) add_dq();  // dK need not wait for a turn
    /*%/dq_turns%*/
  }

  // Q and dO of a step have been read, and the statistics by every lane.
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
    int m = tile.starts_at();
    /*%#dq%*/
    place = (tile.first_row(params) + m * kTileM) * (kHeadDim / 4) +
            warpgroup * 16 * (kTileM == 128 ? kHeadDim : 64) + threadIdx.x % 128;
    /*%/dq%*/
#pragma unroll 1
    for (int left = tile.steps(params); left > 0; --left) {
      compute_step(first_key, m * kTileM, first);
      /*%#dq%*/
      if (!first) {
        place += kTileM * kHeadDim / 4;
        if (m == tile.first_step) place -= (tile.end_step - m) * (kTileM * kHeadDim / 4);
        // On to the group's next head.
        if (m == tile.starts_at()) place += params.padded_q * (kHeadDim / 4);
      }
      /*%/dq%*/
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
    if (warpgroup == 1) named_barrier_arrive(1, 256);
      /*%/turns%*/
#pragma unroll 1
    for (;; ++round) {
      const int index = read_ticket(shared, round);
      if (index < 0) break;
      compute(tile_at(index, params));
    }
    /*%#turns%*/
    if (warpgroup == 0) named_barrier_sync(1, 256);
    /*%/turns%*/
  }
};
