// Consumers where one warpgroup can't hold both dK and dV of its keys: two that share 64 keys. The owner of
// dV computes S and P, and hands P to the owner of dK, which computes dP and dS. Each issues the gradient of
// the step before ahead of its scores, so that Q and dO go back to the producer half a step before they are
// asked for again.
/*%#pair%*/
// dS takes P's place, from where it goes to dQ (pair.cuh) and to the other CTA.
/*%/pair%*/
#pragma once
#include "params/backward.h"
#include "parts/wgmma_backward/arrive_written.cuh"
#include "parts/wgmma_backward/chains.cuh"
#include "parts/wgmma_backward/layout.cuh"
#include "parts/wgmma_backward/scores.cuh"
#include "parts/wgmma_backward/tiles.cuh"
#include "ptx/load_shared_16.cuh"
#include "ptx/mbarrier.cuh"
/*%#pair%*/
#include "ptx/bulk_send.cuh"
#include "ptx/cluster.cuh"
#include "ptx/pin.cuh"
#include "ptx/pin_fragment.cuh"
#include "ptx/stmatrix.cuh"
/*%/pair%*/
#include "ptx/store_shared_16.cuh"
#include "ptx/wgmma.cuh"

// What both keep: which step of the CTA this is, over all its tiles; it says which stage, and which parity.
struct SharedKeys {
  static constexpr int kPieces = kTileM / 16;  // of 16 bytes of P
  /*%#pair%*/
  static constexpr int kEarly = kPieces - 1;  // pieces whose registers are free before the gradient is done
  /*%/pair%*/

  const BackwardParams& params;
  const unsigned shared;
  const unsigned fragment;  // bytes to this lane's piece of a tile's rows
  int step = 0;
  int round = 0;  // tiles so far

  __device__ __forceinline__ SharedKeys(const BackwardParams& parameters, unsigned shared_memory)
      : params(parameters), shared(shared_memory), fragment(fragment_offset(0)) {}

  __device__ __forceinline__ unsigned q_tile(int at) const { return shared + kQ + (at & 1) * kQBytes; }
  __device__ __forceinline__ unsigned do_tile(int at) const { return shared + kDo + (at & 1) * kDoBytes; }
  __device__ __forceinline__ unsigned exchange() const {
    return shared + kExchange + step % kExchangeStages * kDsBytes;
  }
  // Where this thread's registers of P lie in shared memory: a warp's take 2 KB, in their order, with each
  // lane's 16 bytes next to its neighbour's.
  __device__ __forceinline__ unsigned p_pieces() const {
    return exchange() + warp_of_warpgroup() * kPieces * 512 + lane() * 16;
  }
  __device__ __forceinline__ unsigned exchange_barrier(int barrier) const {
    return shared + barrier + 8 * (step % kExchangeStages);
  }
  __device__ __forceinline__ int exchange_parity() const { return step / kExchangeStages & 1; }
  __device__ __forceinline__ void wait_for(int barrier, int at) const {
    mbarrier_wait(shared + barrier + 8 * (at & 1), at >> 1 & 1);
  }
  __device__ __forceinline__ void release(int barrier, int at) const {
    arrive_once(shared + barrier + 8 * (at & 1));
  }
};

struct ValueOwner : SharedKeys {
  float dv[kHeadDimV / 2];
  unsigned p[kTileM / 4];  // of the step before, transposed, as pairs

  using SharedKeys::SharedKeys;

  __device__ __forceinline__ void finish_scores(float (&s)[kTileM / 2], const Statistics& lse, int key,
                                                int query) {
    if (needs_mask(key, query, params)) mask(s, key, query, params);
    exponentiate(p, s, lse, params.scale_log2);
    __syncwarp();
    release(kQEmpty, step);
    mbarrier_wait(exchange_barrier(kExchangeEmpty), exchange_parity() ^ 1);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      store_shared(p_pieces() + 512 * i, uint4{p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]});
    }
    __syncwarp();
    arrive_once(exchange_barrier(kExchangeFull));
    ++step;
  }

  __device__ __forceinline__ void first_step(int key, int query) {
    float s[kTileM / 2];
    wait_for(kQFull, step);
    issue_scores<kHeadDim, kTileN, kTileM>(s, shared + kK, q_tile(step));
    Statistics lse;
    load_statistics(lse, shared + kLse + (step & 1) * kRowStatistics);
    wgmma_wait<0>();
    pin(s);
    finish_scores(s, lse, key, query);
  }

  __device__ __forceinline__ void next_step(int key, int query) {
    float s[kTileM / 2];
    wait_for(kDoFull, step - 1);
    /*%^pair%*/
    issue_gradient_v<kTileM>(dv, p, do_tile(step - 1));
    wait_for(kQFull, step);
    /*%/pair%*/
    /*%#pair%*/
    // S takes the registers of most of P, while the rest is multiplied.
    issue_gradient_v<kTileM, 0, kEarly>(dv, p, do_tile(step - 1));
    issue_gradient_v<kTileM, kEarly>(dv, p, do_tile(step - 1));
    wait_for(kQFull, step);
    wgmma_wait<1>();
    pin_some<0, 4 * kEarly>(p);
    /*%/pair%*/
    issue_scores<kHeadDim, kTileN, kTileM>(s, shared + kK, q_tile(step));
    Statistics lse;
    load_statistics(lse, shared + kLse + (step & 1) * kRowStatistics);
    wgmma_wait<1>();
    pin(dv);
    /*%^pair%*/
    pin(p);
    /*%/pair%*/
    /*%#pair%*/
    pin_some<4 * kEarly, kTileM / 4>(p);
    /*%/pair%*/
    release(kDoEmpty, step - 1);
    wgmma_wait<0>();
    pin(s);
    finish_scores(s, lse, key, query);
  }

  __device__ __forceinline__ void compute(const KeyTile& tile) {
    clear(dv);
    mbarrier_wait(shared + kKFull, round % 2);
    int m = tile.starts_at();
    int left = tile.steps(params);
    const bool any = left > 0;
    if (any) first_step(tile.key, m * kTileM);
#pragma unroll 1
    while (--left > 0) {
      tile.advance(m);
      next_step(tile.key, m * kTileM);
    }
    arrive_once(shared + kKRead);
    if (any) {
      wait_for(kDoFull, step - 1);
      issue_gradient_v<kTileM>(dv, p, do_tile(step - 1));
      wgmma_wait<0>();
      pin(dv);
      release(kDoEmpty, step - 1);
    }
    mbarrier_wait(shared + kVRead, round % 2);
    stage_gradient<kTileN>(dv, shared + kV, fragment, 1.0f);
    arrive_written(shared + kDvStaged);
  }
};

struct KeyOwner : SharedKeys {
  float dk[kHeadDim / 2];
  unsigned ds[kTileM / 4];  // of the step before, transposed, as pairs

  using SharedKeys::SharedKeys;

  /*%#pair%*/
  // Copies this warp's rows of dS to the other CTA, once their place there is free.
  __device__ __forceinline__ void send_ds() const {
    constexpr int kBytes = kDsBytes / 4;
    mbarrier_wait(shared + kOtherDsEmpty, (step & 1) ^ 1);
    __syncwarp();  // a lane that came out of its wait late would wait for what this copy leads to
    if (lane() == 0) {
      const unsigned rows = warp_of_warpgroup() * kBytes;
      const int other = cluster_rank() ^ 1;
      bulk_send(in_cta(other, shared + kOtherDs + rows), exchange() + rows, kBytes,
                in_cta(other, shared + kOtherDsFull));
    }
    __syncwarp();
  }

  /*%/pair%*/
  __device__ __forceinline__ void finish_scores(const float (&dp)[kTileM / 2]) {
    mbarrier_wait(exchange_barrier(kExchangeFull), exchange_parity());
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const uint4 piece = load_shared_16(p_pieces() + 512 * i);
      ds[4 * i] = piece.x;
      ds[4 * i + 1] = piece.y;
      ds[4 * i + 2] = piece.z;
      ds[4 * i + 3] = piece.w;
    }
    differentiate(ds, ds, dp);
    __syncwarp();
    /*%^pair%*/
    arrive_once(exchange_barrier(kExchangeEmpty));
    /*%/pair%*/
    /*%#pair%*/
    // One row per key: the rows of a warp take the place of its pieces of P.
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      stmatrix(exchange() + at_column_step<kTileN>(fragment, i), ds[4 * i], ds[4 * i + 1], ds[4 * i + 2],
               ds[4 * i + 3]);
    }
    arrive_written(exchange_barrier(kDsFull));
    /*%/pair%*/
    release(kDoEmpty, step);
    /*%#pair%*/
    send_ds();
    /*%/pair%*/
    ++step;
  }

  __device__ __forceinline__ void first_step() {
    float dp[kTileM / 2];
    wait_for(kDoFull, step);
    Statistics delta;
    load_statistics(delta, shared + kDelta + (step & 1) * kRowStatistics);
    begin_gradient(dp, delta);
    issue_scores<kHeadDimV, kTileN, kTileM, true>(dp, shared + kV, do_tile(step));
    wgmma_wait<0>();
    pin(dp);
    finish_scores(dp);
  }

  __device__ __forceinline__ void next_step() {
    float dp[kTileM / 2];
    wait_for(kQFull, step - 1);
    /*%^pair%*/
    issue_gradient_qk<kTileM>(dk, ds, q_tile(step - 1));
    wait_for(kDoFull, step);
    /*%/pair%*/
    /*%#pair%*/
    issue_gradient_qk<kTileM, 0, kEarly>(dk, ds, q_tile(step - 1));
    issue_gradient_qk<kTileM, kEarly>(dk, ds, q_tile(step - 1));
    wait_for(kDoFull, step);
    wgmma_wait<1>();
    pin_some<0, 4 * kEarly>(ds);
    /*%/pair%*/
    Statistics delta;
    load_statistics(delta, shared + kDelta + (step & 1) * kRowStatistics);
    begin_gradient(dp, delta);
    issue_scores<kHeadDimV, kTileN, kTileM, true>(dp, shared + kV, do_tile(step));
    wgmma_wait<1>();
    pin(dk);
    /*%^pair%*/
    pin(ds);
    /*%/pair%*/
    /*%#pair%*/
    pin_some<4 * kEarly, kTileM / 4>(ds);
    /*%/pair%*/
    release(kQEmpty, step - 1);
    wgmma_wait<0>();
    pin(dp);
    finish_scores(dp);
  }

  __device__ __forceinline__ void compute(const KeyTile& tile) {
    clear(dk);
    mbarrier_wait(shared + kVFull, round % 2);
    int left = tile.steps(params);
    const bool any = left > 0;
    if (any) first_step();
#pragma unroll 1
    while (--left > 0) next_step();
    arrive_once(shared + kVRead);
    if (any) {
      wait_for(kQFull, step - 1);
      issue_gradient_qk<kTileM>(dk, ds, q_tile(step - 1));
      wgmma_wait<0>();
      pin(dk);
      release(kQEmpty, step - 1);
    }
    mbarrier_wait(shared + kKRead, round % 2);
    stage_gradient<kTileN>(dk, shared + kK, fragment, params.scale);
    arrive_written(shared + kDkStaged);
  }
};

// An owner's life: tile after tile until there are no more.
template <class Owner>
__device__ __forceinline__ void compute_tiles(Owner owner, const BackwardParams& p) {
#pragma unroll 1
  for (;; ++owner.round) {
    const int index = read_ticket_together(owner.shared, owner.round);
    if (index < 0) return;
    owner.compute(tile_at(index, p));
  }
}
