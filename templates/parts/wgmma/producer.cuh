// The producer: one thread keeps Q, K and V coming, in the order in which the consumers ask for them.
#pragma once
#include "params/forward.h"
#include "parts/wgmma/layout.cuh"
#include "parts/wgmma/tiles.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"

// A block of K or V.
template <int kPanels, int kBoxPanels>
__device__ __forceinline__ void load_block(unsigned to, const TensorMap& map, unsigned barrier, int row,
                                           int head, int batch) {
  mbarrier_arrive_expecting(barrier, kPanels * kTileN * kRowBytes);
#pragma unroll
  for (int panel = 0; panel < kPanels; panel += kBoxPanels) {
    tma_load(to + panel * kTileN * kRowBytes, map, barrier, box_at<kBoxPanels>(panel, row, head, batch));
  }
}

struct Producer {
  const TensorMap& map_q;
  const TensorMap& map_k;
  const TensorMap& map_v;
  unsigned shared;
  RingPlace place{0, 1};  // of the next K; V is one block behind
  int tiles_loaded = 0;

  __device__ __forceinline__ void load_k(const Tile& tile, int block, int head) {
    mbarrier_wait(shared + kKEmpty + 8 * place.stage, place.parity);
    load_block<kPanelsQk, kBoxPanelsQk>(shared + kK + place.stage * kKBytes, map_k,
                                        shared + kKFull + 8 * place.stage, block * kTileN, head, tile.batch);
  }

  __device__ __forceinline__ void load_v(const Tile& tile, int block, int head, const RingPlace& at) {
    mbarrier_wait(shared + kVEmpty + 8 * at.stage, at.parity);
    load_block<kPanelsV, kBoxPanelsV>(shared + kV + at.stage * kVBytes, map_v, shared + kVFull + 8 * at.stage,
                                      block * kTileN, head, tile.batch);
  }

  __device__ __forceinline__ void load_q(const Tile& tile, int warpgroup, const ForwardParams& p) const {
    const unsigned barrier = shared + kQFull + 8 * warpgroup;
    mbarrier_arrive_expecting(barrier, kQBytes);
#pragma unroll
    for (int panel = 0; panel < kPanelsQk; ++panel) {
      tma_load(shared + kQ + warpgroup * kQBytes + panel * 64 * kRowBytes, map_q, barrier,
               rows_at(panel, tile.row + 64 * warpgroup, tile, p));
    }
  }

  // K of the first block, Q, then K of each block before V of the one before it.
  __device__ __forceinline__ void load_tile(const Tile& tile, const ForwardParams& p) {
    const int head_kv = tile.head / p.group;
    if (tile.blocks > 0) load_k(tile, tile.blocks - 1, head_kv);
    for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
      mbarrier_wait(shared + kQEmpty + 8 * warpgroup, ~tiles_loaded & 1);
      load_q(tile, warpgroup, p);
    }
    for (int left = tile.blocks - 1; left >= 0; --left) {
      const RingPlace at = place;
      advance(place);
      if (left > 0) load_k(tile, block_at(left - 1, tile, p), head_kv);
      load_v(tile, block_at(left, tile, p), head_kv, at);
    }
    ++tiles_loaded;
  }
};

/*%#dynamic%*/
// Takes tiles from the counter in device memory and hands their numbers on. The last CTA to finish zeroes the
// counter.
__device__ __forceinline__ void produce(Producer& producer, const ForwardParams& p) {
  const int tiles = tile_count(p);
  for (;;) {
    const int index = atomicAdd(p.tile_counter, 1);
    const int slot = producer.tiles_loaded & 1;
    mbarrier_wait(producer.shared + kTicketEmpty + 8 * slot, ~producer.tiles_loaded >> 1 & 1);
    store_shared(producer.shared + kTicket + 4 * slot, index);
    mbarrier_arrive(producer.shared + kTicketFull + 8 * slot);
    if (index >= tiles) break;
    const Tile tile = tile_at(index, p);
    producer.load_tile(tile, p);
  }
  if (atomicAdd(p.tile_counter + 1, 1) == static_cast<int>(gridDim.x) - 1) {
    p.tile_counter[0] = 0;
    p.tile_counter[1] = 0;
  }
}
/*%/dynamic%*/
/*%^dynamic%*/
// Tiles in the order of their numbers, dealt to the CTAs like cards.
__device__ __forceinline__ void produce(Producer& producer, const ForwardParams& p) {
  const int tiles = tile_count(p);
  for (int index = static_cast<int>(blockIdx.x); index < tiles; index += static_cast<int>(gridDim.x)) {
    const Tile tile = tile_at(index, p);
    producer.load_tile(tile, p);
  }
}
/*%/dynamic%*/
