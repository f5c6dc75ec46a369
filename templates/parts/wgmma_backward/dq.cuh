// dQ from the owners of its rows: as in a forward pass, a CTA takes a tile of queries and walks over the keys
// that they see.
#pragma once
#include "params/backward.h"
#include "parts/anew.cuh"
/*%#causal%*/
#include "parts/diagonal.cuh"
/*%/causal%*/
#include "parts/divide.cuh"
#include "parts/wgmma_backward/chains.cuh"
#include "parts/wgmma_backward/dq_layout.cuh"
/*%#sections%*/
#include "parts/wgmma_backward/sections.cuh"
/*%/sections%*/
#include "parts/wgmma_backward/tickets.cuh"
#include "ptx/bulk_group.cuh"
#include "ptx/convert.cuh"
#include "ptx/fence_async_shared.cuh"
#include "ptx/infinity.cuh"
#include "ptx/math.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mbarrier_bytes.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pin.cuh"
#include "ptx/pin_fragment.cuh"
#include "ptx/tensor_map.cuh"
#include "ptx/wgmma.cuh"

struct QueryTile {
  int row;  // the first
  int head, batch;
};

__device__ __forceinline__ QueryTile tile_at(int index, const BackwardParams& p) {
  /*%#sections%*/
  const auto [batch_head, longer] = place_at(index, p);
  const int n = anew(p.tiles) - 1 - longer;  // the last rows have the longest tile
  /*%/sections%*/
  /*%^sections%*/
  // All tiles of a head, then the next head: what runs together shares K and V.
  const int batch_head = divide(index, p.by_tiles);
  const int n = index - batch_head * anew(p.tiles);
  /*%/sections%*/
  QueryTile tile;
  tile.row = n * kTileM;
  tile.batch = divide(batch_head, p.by_heads);
  tile.head = batch_head - tile.batch * p.heads;
  return tile;
}

// Keys that a query sees; none where not positive.
/*%#causal%*/
__device__ __forceinline__ int visible_keys(int row, const BackwardParams& p) {
  return min(p.seqlen_k, row + 1 + diagonal(p));
}
/*%/causal%*/
/*%^causal%*/
__device__ __forceinline__ int visible_keys(int, const BackwardParams& p) {
  return p.seqlen_k;
}
/*%/causal%*/

// Blocks of kTileN keys that some of the queries `row` to `end` - 1 see.
__device__ __forceinline__ int visible_blocks(int row, int end, const BackwardParams& p) {
  if (row >= p.seqlen_q) return 0;
  return (max(0, visible_keys(min(end, p.seqlen_q) - 1, p)) + kTileN - 1) / kTileN;
}

// One thread brings each tile's Q and dO.
__device__ __forceinline__ void feed_queries(const TensorMap& map_q, const TensorMap& map_dout,
                                             const BackwardParams& p, unsigned shared) {
#pragma unroll 1
  for (int round = 0;; ++round) {
    const int index = read_ticket(shared, round);
    if (index < 0) return;
    const QueryTile tile = tile_at(index, p);
#pragma unroll 1
    for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
      const unsigned q_full = shared + kQFull + 8 * warpgroup, do_full = shared + kDoFull + 8 * warpgroup;
      mbarrier_wait(shared + kQEmpty + 8 * warpgroup, round % 2 ^ 1);
      mbarrier_arrive_expecting(q_full, kQBytes);
      load_tile<kPanelsQk, kBoxPanelsQk, 64>(shared + kQ + warpgroup * kQBytes, map_q, q_full,
                                             tile.row + 64 * warpgroup, tile.head, tile.batch);
      mbarrier_wait(shared + kDoEmpty + 8 * warpgroup, round % 2 ^ 1);
      mbarrier_arrive_expecting(do_full, kDoBytes);
      load_tile<kPanelsV, kBoxPanelsV, 64>(shared + kDo + warpgroup * kDoBytes, map_dout, do_full,
                                           tile.row + 64 * warpgroup, tile.head, tile.batch);
    }
  }
}

template <int kPanels, int kBoxPanels>
__device__ __forceinline__ void load_slot(const TensorMap& map, unsigned shared, Slot& slot, int key,
                                          int head_kv, int batch) {
  const unsigned full = shared + kSlotFull + 8 * slot.number;
  mbarrier_wait(shared + kSlotEmpty + 8 * slot.number, slot.parity);
  mbarrier_arrive_expecting(full, kTileN * kRowBytes * kPanels);
  load_tile<kPanels, kBoxPanels, kTileN>(shared + kRing + slot.number * kSlotBytes, map, full, key, head_kv,
                                         batch);
  slot.advance();
}

// Another thread deals tiles and keeps the ring going. V comes before K: a K is released one step late, so
// that with K first three slots would deadlock.
__device__ __forceinline__ void feed_ring(const TensorMap& map_k, const TensorMap& map_v,
                                          const BackwardParams& p, unsigned shared) {
  Slot slot{0, 1};
#pragma unroll 1
  for (int round = 0;; ++round) {
    const int index = next_ticket(shared, round, anew(p.tiles) * p.heads * p.batch, p);
    if (index < 0) return;
    const QueryTile tile = tile_at(index, p);
    const int head_kv = divide(tile.head, p.by_group);
    const int end = visible_blocks(tile.row, tile.row + kTileM, p) * kTileN;
#pragma unroll 1
    for (int key = 0; key < end; key += kTileN) {
      load_slot<kPanelsV, kBoxPanelsV>(map_v, shared, slot, key, head_kv, tile.batch);
      load_slot<kPanelsQk, kBoxPanelsQk>(map_k, shared, slot, key, head_kv, tile.batch);
    }
  }
}

// A consumer: a warpgroup that owns 64 rows.
struct QueryOwner {
  const BackwardParams& params;
  const unsigned shared;
  const int warpgroup;
  Slot slot{0, 0};
  float dq[kHeadDim / 2];
  unsigned ds[kTileN / 4];
  float lse[2], delta[2];  // of this thread's rows, 8 apart

  __device__ __forceinline__ QueryOwner(const BackwardParams& parameters, unsigned shared_memory, int number)
      : params(parameters), shared(shared_memory), warpgroup(number) {}

  __device__ __forceinline__ unsigned tile_in(int number) const {
    return shared + kRing + number * kSlotBytes;
  }
  __device__ __forceinline__ void wait_for(const Slot& at) const {
    mbarrier_wait(shared + kSlotFull + 8 * at.number, at.parity);
  }
  __device__ __forceinline__ void release(int number) const { arrive_once(shared + kSlotEmpty + 8 * number); }

  // Hides a block's scores that lie past the diagonal or past the last key.
  __device__ __forceinline__ void mask(float (&s)[kTileN / 2], int row, int key) const {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const int first_hidden = visible_keys(row + 8 * which, params) - key - 2 * (lane() % 4);
#pragma unroll
      for (int i = 0; i < kTileN / 4; ++i) {
        if (i / 2 * 8 + i % 2 >= first_hidden) s[i / 2 * 4 + 2 * which + i % 2] = -kInfinity;
      }
    }
  }

  // S, then dP beside the exponentials, then dQ beside the next block's S.
  __device__ __forceinline__ void step(int row, int key, bool masked, int& k_before) {
    float s[kTileN / 2], dp[kTileN / 2];
    const Slot v = slot;
    slot.advance();
    const Slot k = slot;
    slot.advance();
    wait_for(k);
    issue_scores<kHeadDim, 64, kTileN>(s, shared + kQ + warpgroup * kQBytes, tile_in(k.number));
    wait_for(v);
    issue_scores<kHeadDimV, 64, kTileN>(dp, shared + kDo + warpgroup * kDoBytes, tile_in(v.number));
    wgmma_wait<1>();
    pin(s);
    pin(dq);
    pin(ds);
    if (k_before >= 0) release(k_before);
    k_before = k.number;
    if (masked) mask(s, row, key);
#pragma unroll
    for (int i = 0; i < kTileN / 2; ++i) s[i] = exp2_fast(s[i] * params.scale_log2 - lse[i / 2 % 2]);
    wgmma_wait<0>();
    pin(dp);
    release(v.number);
#pragma unroll
    for (int i = 0; i < kTileN / 4; ++i) {
      ds[i] = pack(s[2 * i] * (dp[2 * i] - delta[i % 2]), s[2 * i + 1] * (dp[2 * i + 1] - delta[i % 2]));
    }
    issue_gradient_qk<kTileN>(dq, ds, tile_in(k.number));
  }

  __device__ __forceinline__ void compute(const QueryTile& tile, int round, const TensorMap& map_dq) {
    const int first_row = tile.row + 64 * warpgroup;
    const int row = first_row + 16 * warp_of_warpgroup() + lane() / 4;
    clear(dq);
    const long long at =
        (static_cast<long long>(tile.batch) * params.heads + tile.head) * params.padded_q + row;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      lse[which] = params.lse_log2[at + 8 * which];
      delta[which] = params.delta[at + 8 * which];
    }
    mbarrier_wait(shared + kQFull + 8 * warpgroup, round % 2);
    mbarrier_wait(shared + kDoFull + 8 * warpgroup, round % 2);
    const int blocks = visible_blocks(first_row, first_row + 64, params);
    int k_before = -1;
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      const bool masked = (block + 1) * kTileN > visible_keys(first_row, params);
      step(row, block * kTileN, masked, k_before);
    }
    wgmma_wait<0>();
    pin(dq);
    if (k_before >= 0) release(k_before);
    // Blocks that only the other warpgroup's queries see are taken and given back, so that the ring moves on.
    for (int left = 2 * (visible_blocks(tile.row, tile.row + kTileM, params) - blocks); left > 0; --left) {
      wait_for(slot);
      release(slot.number);
      slot.advance();
    }
    arrive_once(shared + kDoEmpty + 8 * warpgroup);
    // dQ leaves through Q's place, which is free again once it has left.
    const unsigned staged = shared + kQ + warpgroup * kQBytes;
    stage_gradient<64>(dq, staged, fragment_offset(0), params.scale);
    fence_async_shared();
    named_barrier_sync(1 + warpgroup, 128);
    if (threadIdx.x % 128 == 0) {
      store_tile<kPanelsQk, kBoxPanelsQk, 64>(map_dq, staged, first_row, tile.head, tile.batch);
      bulk_wait_read();
      mbarrier_arrive(shared + kQEmpty + 8 * warpgroup);
    }
  }

  __device__ __forceinline__ void run(const TensorMap& map_dq) {
#pragma unroll 1
    for (int round = 0;; ++round) {
      const int index = read_ticket_together(shared, round);
      if (index < 0) return;
      compute(tile_at(index, params), round, map_dq);
    }
  }
};
