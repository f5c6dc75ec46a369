// The producer: one thread keeps Q, K and V coming, in the order in which the consumers ask for them.
#pragma once
#include "params/forward.h"
/*%^split%*/
#include "parts/wgmma/blocks.cuh"
/*%/split%*/
#include "parts/wgmma/layout.cuh"
/*%#split%*/
#include "parts/wgmma/share_blocks.cuh"
/*%/split%*/
/*%#dynamic%*/
#include "parts/wgmma/tickets.cuh"
/*%/dynamic%*/
#include "parts/wgmma/tiles.cuh"
/*%#cluster%*/
#include "ptx/cluster.cuh"
/*%/cluster%*/
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"
/*%#cluster%*/
#include "ptx/tma_multicast.cuh"
/*%/cluster%*/

// Panels kFirst .. kEnd - 1 of a block of K or V, of a head that begins at `column` of the map's.
template <int kFirst, int kEnd, int kBoxPanels>
__device__ __forceinline__ void load_block(unsigned to, const TensorMap& map, unsigned barrier, int row,
                                           int head, int batch, int column = 0) {
#pragma unroll
  for (int panel = kFirst; panel < kEnd; panel += kBoxPanels) {
    /*%^cluster%*/
    tma_load(to + panel * kTileN * kRowBytes, map, barrier,
             box_at<kBoxPanels>(panel, row, head, batch, column));
    /*%/cluster%*/
    /*%#cluster%*/
    tma_load_multicast(to + panel * kTileN * kRowBytes, map, barrier,
                       box_at<kBoxPanels>(panel, row, head, batch, column), (1 << kCluster) - 1);
    /*%/cluster%*/
  }
}

/*%#joined_v%*/
// Whether V's map has a token's heads as one row, for they lie side by side: so no box ends inside a sector,
// which would take TMA longer. What comes after a head's columns nothing reads.
__device__ __forceinline__ bool heads_are_joined(const ForwardParams& p) {
  return p.v_head == kHeadDimV && p.v_row >= p.heads_kv * kHeadDimV;
}

/*%/joined_v%*/
struct Producer {
  const TensorMap& map_q;
  const TensorMap& map_k;
  /*%#narrow_k%*/
  const TensorMap& map_last_k;  // its last panel
  /*%/narrow_k%*/
  const TensorMap& map_v;
  /*%#joined_v%*/
  bool joined_v;  // heads_are_joined()
  /*%/joined_v%*/
  unsigned shared;
  RingPlace place{0, 1};  // of the next K; V is one block behind
  /*%^split%*/
  int tiles_loaded = 0;
  /*%/split%*/

  /*%^cluster%*/
  // Waits until all warps have read what was there, and says how much is to come.
  __device__ __forceinline__ void expect(unsigned full, unsigned empty, int parity, int bytes) const {
    mbarrier_wait(empty, parity);
    mbarrier_arrive_expecting(full, bytes);
  }
  /*%/cluster%*/
  /*%#cluster%*/
  // The CTA that loads waits until all warps of the cluster have read what was there, the other one until it
  // has come: then it may say how much is to come next, which may be on its way already. True for who loads.
  __device__ __forceinline__ bool expect(unsigned full, unsigned empty, int parity, int bytes,
                                         int loader) const {
    const bool loads = cluster_rank() == loader;
    mbarrier_wait(loads ? empty : full, parity);
    mbarrier_arrive_expecting(full, bytes);
    return loads;
  }
  /*%/cluster%*/

  __device__ __forceinline__ void load_k(const Tile& tile, int block, int head) const {
    const unsigned full = shared + kKFull + 8 * place.stage, empty = shared + kKEmpty + 8 * place.stage;
    /*%^cluster%*/
    expect(full, empty, place.parity, kKLoaded);
    /*%/cluster%*/
    /*%#cluster%*/
    if (!expect(full, empty, place.parity, kKLoaded, kLoaderOfK)) return;
    /*%/cluster%*/
    const unsigned to = shared + kK + place.stage * kKBytes;
    /*%^narrow_k%*/
    load_block<0, kPanelsQk, kBoxPanelsQk>(to, map_k, full, block * kTileN, head, tile.batch);
    /*%/narrow_k%*/
    /*%#narrow_k%*/
    load_block<0, kPanelsQk - 1, kBoxPanelsQk>(to, map_k, full, block * kTileN, head, tile.batch);
    load_block<kPanelsQk - 1, kPanelsQk, kBoxPanelsQk>(to, map_last_k, full, block * kTileN, head,
                                                       tile.batch);
    /*%/narrow_k%*/
  }

  __device__ __forceinline__ void load_v(const Tile& tile, int block, int head, const RingPlace& at) const {
    const unsigned full = shared + kVFull + 8 * at.stage, empty = shared + kVEmpty + 8 * at.stage;
    /*%^cluster%*/
    expect(full, empty, at.parity, kVBytes);
    /*%/cluster%*/
    /*%#cluster%*/
    if (!expect(full, empty, at.parity, kVBytes, kLoaderOfV)) return;
    /*%/cluster%*/
    /*%^joined_v%*/
    load_block<0, kPanelsV, kBoxPanelsV>(shared + kV + at.stage * kVBytes, map_v, full, block * kTileN, head,
                                         tile.batch);
    /*%/joined_v%*/
    /*%#joined_v%*/
    load_block<0, kPanelsV, kBoxPanelsV>(shared + kV + at.stage * kVBytes, map_v, full, block * kTileN,
                                         joined_v ? 0 : head, tile.batch, joined_v ? head * kHeadDimV : 0);
    /*%/joined_v%*/
  }

  __device__ __forceinline__ void load_q(const Tile& tile, int warpgroup, const ForwardParams& p) const {
    const unsigned barrier = shared + kQFull + 8 * warpgroup;
    mbarrier_arrive_expecting(barrier, kQBytes);
#pragma unroll
    for (int panel = 0; panel < kPanelsQk; ++panel) {
      tma_load(shared + kQ + warpgroup * kQBytes + panel * 64 * kRowBytes, map_q, barrier,
               rows_at(panel, tile.row + kRowStep * warpgroup, tile, p));
    }
  }

  // K of the first block, Q, then K of each block before V of the one before it.
  __device__ __forceinline__ void load_tile(const Tile& tile, const ForwardParams& p) {
    const int head_kv = tile.head / p.group;
    /*%^split%*/
    if (tile.blocks > 0) load_k(tile, tile.blocks - 1, head_kv);
    /*%/split%*/
    /*%#split%*/
    if (tile.blocks > 0) load_k(tile, block_at(tile.blocks - 1, tile, p), head_kv);
    /*%/split%*/
    for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
      /*%^split%*/
      mbarrier_wait(shared + kQEmpty + 8 * warpgroup, ~tiles_loaded & 1);
      /*%/split%*/
      load_q(tile, warpgroup, p);
    }
#pragma unroll 1  // unrolled, it would need more registers than producers have
    for (int left = tile.blocks - 1; left >= 0; --left) {
      const RingPlace at = place;
      advance(place);
      if (left > 0) load_k(tile, block_at(left - 1, tile, p), head_kv);
      load_v(tile, block_at(left, tile, p), head_kv, at);
    }
    /*%^split%*/
    ++tiles_loaded;
    /*%/split%*/
  }
};

/*%#dynamic%*/
__device__ __forceinline__ void produce(Producer& producer, const ForwardParams& p) {
  const int tiles = tile_count(p);
  for (;;) {
    const int index = next_ticket(producer.shared, producer.tiles_loaded, p);
    if (index >= tiles) break;
    const Tile tile = tile_at(index, p);
    producer.load_tile(tile, p);
  }
  leave_counter(p);
}
/*%/dynamic%*/
/*%#split%*/
__device__ __forceinline__ void produce(Producer& producer, const ForwardParams& p) {
  producer.load_tile(tile_at(only_tile(p), p), p);
}
/*%/split%*/
/*%#dealt%*/
__device__ __forceinline__ void produce(Producer& producer, const ForwardParams& p) {
  const int tiles = tile_count(p);
  for (int index = first_tile(); index < tiles; index += tiles_dealt()) {
    const Tile tile = tile_at(index, p);
    producer.load_tile(tile, p);
  }
}
/*%/dealt%*/
