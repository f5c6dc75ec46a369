// Which CTAs have the same rows and columns of a tile, but different keys; and how they tell each other, by
// counters that are 0 between launches, that their pieces lie in device memory.
#pragma once
#include "params/forward.h"
#include "parts/wgmma/consumer.cuh"
/*%#even%*/
#include "parts/wgmma/share_bounds.cuh"
/*%/even%*/
#include "parts/wgmma/tiles.cuh"
/*%#even%*/
#include "ptx/load_acquire.cuh"
/*%/even%*/
#include "ptx/add_acquire_release.cuh"
/*%#split%*/
#include "ptx/cluster.cuh"
/*%/split%*/

struct Sharers {
  int count;
  /*%#split%*/
  int counter;  // which counter they share, by tile and CTA of the cluster (counter_of)
  /*%/split%*/
  /*%#even%*/
  int counter;  // which counter they share: the first sharer's CTA (counter_of)
  int first;    // of the shares; the others follow
  /*%/even%*/

  /*%#split%*/
  // One CTA of each of the tile's clusters.
  __device__ __forceinline__ Sharers(const Tile&, const ForwardParams& p)
      : count(p.clusters), counter(only_tile(p) * kCluster + cluster_rank()) {}
  __device__ __forceinline__ int place_of(int which, const ForwardParams& p) const {
    return (only_tile(p) * p.clusters + which) * kCluster + cluster_rank();
  }
  /*%/split%*/
  /*%#even%*/
  // The CTAs whose shares have blocks of the tile. Each is the first sharer of at most one tile that goes on
  // in another share.
  __device__ __forceinline__ Sharers(const Tile& tile, const ForwardParams& p) {
    first = share_of(tile.index, 0, p);
    count = share_of(tile.index, blocks_of_tile(tile, p) - 1, p) - first + 1;
    counter = counterpart(first);
  }
  __device__ __forceinline__ int place_of(int which, const ForwardParams&) const {
    return 2 * counterpart(first + which) + (which == 0);
  }
  /*%/even%*/
};

/*%#split%*/
// Where this CTA puts its pieces of a tile.
__device__ __forceinline__ int own_place(const Tile& tile, const ForwardParams& p) {
  return Sharers(tile, p).place_of(cluster_of_tile(p), p);
}
/*%/split%*/
/*%#even%*/
// Where this CTA puts its pieces of a tile, of which it has the first blocks or others: it may put down
// pieces of two tiles.
__device__ __forceinline__ int own_place(const Tile& tile, const ForwardParams&) {
  return 2 * static_cast<int>(blockIdx.x) + (tile.first == 0);
}
/*%/even%*/

// The sharers' counter for the rows of this warpgroup.
__device__ __forceinline__ int* counter_of(const Sharers& sharers, const Consumer& consumer,
                                           const ForwardParams& p) {
  return p.tile_counter + sharers.counter * kWarpgroups + consumer.warpgroup;
}

/*%#split%*/
// Whether this warp comes after those of all other sharers; if so, it sees their pieces. A counter has a byte
// for each warp of a warpgroup.
__device__ __forceinline__ bool comes_last(const Sharers& sharers, const Consumer& consumer,
                                           const ForwardParams& p) {
  int* counter = counter_of(sharers, consumer, p);
  const int bits = 8 * warp_of_warpgroup();
  int before = 0;
  __syncwarp();  // all of the warp's pieces come before …
  if (lane() == 0) before = add_acquire_release(counter, 1 << bits) >> bits & 255;
  __syncwarp();  // … and what any of its lanes reads comes after
  before = __shfl_sync(0xffffffffu, before, 0);
  const bool last = before == sharers.count - 1;
  if (last && lane() == 0) atomicSub(counter, sharers.count << bits);
  return last;
}

/*%/split%*/
/*%#even%*/
// Whether this warpgroup comes after those of all other sharers; if so, it sees their pieces.
__device__ __forceinline__ bool comes_last(const Sharers& sharers, const Consumer& consumer,
                                           const ForwardParams& p) {
  int* counter = counter_of(sharers, consumer, p);
  bool last = false;
  consumer.meet();  // all of its pieces come before …
  if (threadIdx.x % 128 == 0) {
    last = add_acquire_release(counter, 1) == sharers.count - 1;
    if (last) *counter = 0;
  }
  __syncwarp();  // so that lanes come to the barrier together
  // … and what any thread reads comes after.
  return consumer.any(last);
}

// Whether the first sharer finds all others' pieces, and need not put down its own.
__device__ __forceinline__ bool others_are_there(const Sharers& sharers, const Consumer& consumer,
                                                 const ForwardParams& p) {
  int* counter = counter_of(sharers, consumer, p);
  bool all = false;
  if (threadIdx.x % 128 == 0) {
    all = load_acquire(counter) == sharers.count - 1;
    if (all) *counter = 0;
  }
  __syncwarp();  // so that lanes come to the barrier together
  // What any thread reads comes after.
  return consumer.any(all);
}
/*%/even%*/
