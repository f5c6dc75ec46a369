// The producer: one thread keeps Q, K and V coming, in the order in which the consumers ask for them.
#pragma once
#include "params/forward.h"
#include "parts/divide.cuh"
/*%^shares%*/
#include "parts/wgmma/blocks.cuh"
/*%/shares%*/
/*%#even%*/
#include "parts/wgmma/even_share.cuh"
/*%/even%*/
#include "parts/wgmma/layout.cuh"
/*%#shares%*/
#include "parts/wgmma/share_blocks.cuh"
/*%/shares%*/
/*%#dynamic%*/
#include "parts/wgmma/tickets.cuh"
/*%/dynamic%*/
#include "parts/wgmma/tiles.cuh"
/*%#cluster%*/
#include "ptx/cluster.cuh"
/*%/cluster%*/
#include "ptx/mbarrier.cuh"
#include "ptx/mbarrier_bytes.cuh"
#include "ptx/tensor_map.cuh"
/*%#tma_load%*/
#include "ptx/tma.cuh"
/*%/tma_load%*/
/*%#cluster%*/
#include "ptx/tma_multicast.cuh"
/*%/cluster%*/
/*%#q_own_lines%*/
#include "ptx/tma_once.cuh"
/*%/q_own_lines%*/

// Starts the copy of a box of K or V.
__device__ __forceinline__ void load(unsigned to, const TensorMap& map, unsigned barrier,
                                     const BoxOrigin& from) {
  /*%^cluster%*/
  tma_load(to, map, barrier, from);
  /*%/cluster%*/
  /*%#cluster%*/
  tma_load_multicast(to, map, barrier, from, (1 << kCluster) - 1);
  /*%/cluster%*/
}

struct Producer {
  const TensorMap& map_q;
  /*%#whole_k%*/
  const TensorMap& map_k;  // whole panels
  /*%/whole_k%*/
  /*%#last_k%*/
  const TensorMap& map_last_k;  // the columns after them
  /*%/last_k%*/
  /*%#whole_v%*/
  const TensorMap& map_v;
  /*%/whole_v%*/
  /*%#last_v%*/
  const TensorMap& map_last_v;
  /*%/last_v%*/
  unsigned shared;
  RingPlace place{0, 1};  // of the next K; V is one block behind
  /*%#q_again%*/
  int tiles_loaded = 0;
  /*%/q_again%*/

  /*%^cluster%*/
  // Waits until all warps have read what was there, and says how much is to come.
  __device__ __forceinline__ void expect(unsigned full, unsigned empty, int parity, int bytes) const {
    mbarrier_wait(empty, parity);
    mbarrier_arrive_expecting(full, bytes);
  }
  /*%/cluster%*/
  /*%#cluster%*/
  // The CTA that loads waits until all warps of the cluster have read what was there; the other CTA waits
  // until it has come. Only then may it say how much is to come next, which may be on its way already. True
  // in the CTA that loads.
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
    /*%#whole_k%*/
    load(to, map_k, full, {0, block * kTileN, 0, head, tile.batch});
    /*%/whole_k%*/
    /*%#last_k%*/
    load(to + kWholePanelsQk * kTileN * kRowBytes, map_last_k, full,
         {64 * kWholePanelsQk, block * kTileN, 0, head, tile.batch});
    /*%/last_k%*/
  }

  __device__ __forceinline__ void load_v(const Tile& tile, int block, int head, const RingPlace& at) const {
    const unsigned full = shared + kVFull + 8 * at.stage, empty = shared + kVEmpty + 8 * at.stage;
    /*%^cluster%*/
    expect(full, empty, at.parity, kVLoaded);
    /*%/cluster%*/
    /*%#cluster%*/
    if (!expect(full, empty, at.parity, kVLoaded, kLoaderOfV)) return;
    /*%/cluster%*/
    const unsigned to = shared + kV + at.stage * kVBytes;
    /*%#whole_v%*/
    load(to, map_v, full, {0, block * kTileN, 0, head, tile.batch});
    /*%/whole_v%*/
    /*%#last_v%*/
    load(to + kWholePanelsV * kTileN * kRowBytes, map_last_v, full,
         {64 * kWholePanelsV, block * kTileN, 0, head, tile.batch});
    /*%/last_v%*/
  }

  /*%#q_own_lines%*/
  // Other tiles need K and V again, but not Q, whose lines L2 may give up first.
  /*%/q_own_lines%*/
  /*%^q_own_lines%*/
  // L2 keeps Q as it keeps K and V: its lines hold a part of the next head's rows, too.
  /*%/q_own_lines%*/
  __device__ __forceinline__ void load_q(const Tile& tile, const ForwardParams& p) const {
/*%#cluster%*/
#pragma unroll 1  // unrolled, it would need more registers than a pair's producers have
/*%/cluster%*/
/*%^cluster%*/
#pragma unroll
    /*%/cluster%*/
    for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
      /*%#q_again%*/
      mbarrier_wait(shared + kQEmpty + 8 * warpgroup, ~tiles_loaded & 1);
      /*%/q_again%*/
      const unsigned barrier = shared + kQFull + 8 * warpgroup;
      mbarrier_arrive_expecting(barrier, kQBytes);
#pragma unroll
      for (int panel = 0; panel < kPanelsQk; ++panel) {
        const unsigned to = shared + kQ + warpgroup * kQBytes + panel * 64 * kRowBytes;
        const BoxOrigin from = rows_at(panel, tile.row + kRowStep * warpgroup, tile, p);
        /*%#q_own_lines%*/
        tma_load_once(to, map_q, barrier, from);
        /*%/q_own_lines%*/
        /*%^q_own_lines%*/
        tma_load(to, map_q, barrier, from);
        /*%/q_own_lines%*/
      }
    }
  }

  // K of the first block, Q, then K of each block before V of the one before it.
  __device__ __forceinline__ void load_tile(const Tile& tile, const ForwardParams& p) {
    const int head_kv = divide(tile.pack, p.by_group);
#pragma unroll 1
    for (int left = tile.blocks; left >= 0; --left) {
      const RingPlace at = place;
      if (left < tile.blocks) advance(place);
      if (left > 0) load_k(tile, block_at(left - 1, tile, p), head_kv);
      if (left < tile.blocks) {
        load_v(tile, block_at(left, tile, p), head_kv, at);
      } else {
        load_q(tile, p);
      }
    }
    /*%#q_again%*/
    ++tiles_loaded;
    /*%/q_again%*/
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
/*%#even%*/
__device__ __forceinline__ void produce(Producer& producer, const ForwardParams& p) {
  EvenShare share(p);
  for (Tile tile = share.take(p); tile.length > 0; tile = share.take(p)) producer.load_tile(tile, p);
}
/*%/even%*/
/*%#dealt%*/
__device__ __forceinline__ void produce(Producer& producer, const ForwardParams& p) {
  const int tiles = tile_count(p);
  for (int index = first_tile(); index < tiles; index += tiles_dealt()) {
    const Tile tile = tile_at(index, p);
    producer.load_tile(tile, p);
  }
}
/*%/dealt%*/
