// Where CTAs that have the same rows and columns of a tile, and keys of their own, tell each other through
// device memory: each puts what it has added up there, and of the warps that have the same rows the last one
// to come adds up all. They are added in the order of their CTAs, so that it does not matter which one that
// is.
#pragma once
#include "params/forward.h"
#include "parts/wgmma/consumer.cuh"
#include "parts/wgmma/layout.cuh"
#include "parts/wgmma/rows.cuh"
/*%#even%*/
#include "parts/wgmma/share_bounds.cuh"
/*%/even%*/
#include "parts/wgmma/softmax.cuh"
#include "parts/wgmma/tiles.cuh"
/*%#even%*/
#include "ptx/acquire_release.cuh"
/*%/even%*/
#include "ptx/add_acquire_release.cuh"
/*%#split%*/
#include "ptx/cluster.cuh"
/*%/split%*/
#include "ptx/math.cuh"
#include "ptx/shuffle.cuh"

constexpr int kPiecesOfThread = 1 + kGroupsOfCta;  // its rows' shifts and sums; its columns of each group
// On their way: so many groups of columns, of so many sharers; three warpgroups and more have fewer
// registers.
constexpr int kGroupsAtOnce = kHeadDimV <= 128 ? 16 : 8;
constexpr int kSharersAtOnce = kPiecesOfThread <= 3 ? 8 : kPiecesOfThread <= 6 ? 4 : kWarpgroups <= 2 ? 2 : 1;

// Of one warpgroup, where this thread's begin; each is 128 from the last.
__device__ __forceinline__ float4* pieces_at(int place, const Consumer& consumer, const ForwardParams& p) {
  const int warpgroup = place * kWarpgroups + consumer.warpgroup;
  return reinterpret_cast<float4*>(p.pieces) + 128 * kPiecesOfThread * warpgroup + threadIdx.x % 128;
}

struct Sharers {
  int count;
  int counter;  // theirs
  /*%#even%*/
  int first;  // share; the others follow
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
  // Those whose shares have blocks of the tile. Each is the first one of one tile at most, if that goes on in
  // another share.
  __device__ __forceinline__ Sharers(const Tile& tile, const ForwardParams& p) {
    const ShareBounds bounds(p);
    first = bounds.owner(tile.index, 0);
    count = bounds.owner(tile.index, blocks_of_tile(tile, p) - 1) - first + 1;
    counter = counterpart(first);
  }
  __device__ __forceinline__ int place_of(int which, const ForwardParams&) const {
    return 2 * counterpart(first + which) + (which == 0);
  }
  /*%/even%*/
};

/*%#split%*/
// Where this CTA puts what it knows of a tile.
__device__ __forceinline__ int own_place(const Tile& tile, const ForwardParams& p) {
  return Sharers(tile, p).place_of(cluster_of_tile(p), p);
}
/*%/split%*/
/*%#even%*/
// Where this CTA puts what it knows of a tile, of which it has the first blocks or others: it may do so for
// two.
__device__ __forceinline__ int own_place(const Tile& tile, const ForwardParams&) {
  return 2 * static_cast<int>(blockIdx.x) + (tile.first == 0);
}
/*%/even%*/

// Whether this warp comes after those of all other sharers, whose pieces it sees then. A counter has a byte
// for each warp of a warpgroup.
__device__ __forceinline__ bool comes_last(const Sharers& sharers, const Consumer& consumer,
                                           const ForwardParams& p) {
  int* counter = p.tile_counter + sharers.counter * kWarpgroups + consumer.warpgroup;
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

/*%#even%*/
// Whether the first sharer finds all others' pieces, and need not put down its own.
__device__ __forceinline__ bool others_are_there(const Sharers& sharers, const Consumer& consumer,
                                                 const ForwardParams& p) {
  int* counter = p.tile_counter + sharers.counter * kWarpgroups + consumer.warpgroup;
  const int bits = 8 * warp_of_warpgroup();
  int there = 0;
  if (lane() == 0) there = load_acquire(counter) >> bits & 255;
  __syncwarp();  // what any lane reads comes after
  there = __shfl_sync(0xffffffffu, there, 0);
  const bool all = there == sharers.count - 1;
  if (all && lane() == 0) atomicSub(counter, there << bits);
  return all;
}

/*%/even%*/
// Adds the rows of the sharers from one of them on, and some groups of their columns.
__device__ __forceinline__ void add_groups(const Sharers& sharers, const Consumer& consumer, int from,
                                           int first_group, SoftmaxState& rows, float (&o)[4 * kGroupsOfCta],
                                           const ForwardParams& p) {
#pragma unroll 1
  for (int first = from; first < sharers.count; first += kSharersAtOnce) {
#pragma unroll
    for (int which = first; which < first + kSharersAtOnce; ++which) {
      const float4* pieces = pieces_at(sharers.place_of(min(which, sharers.count - 1), p), consumer, p);
      float4 share = pieces[0];
      if (which >= sharers.count) share.x = share.y = kUnset;  // weighs nothing
      const float shift[2] = {fmaxf(rows.shift[0], share.x), fmaxf(rows.shift[1], share.y)};
      const float before[2] = {exp2_fast(rows.shift[0] - shift[0]), exp2_fast(rows.shift[1] - shift[1])};
      const float weight[2] = {exp2_fast(share.x - shift[0]), exp2_fast(share.y - shift[1])};
      rows.shift[0] = shift[0];
      rows.shift[1] = shift[1];
      rows.sum[0] = before[0] * rows.sum[0] + weight[0] * share.z;
      rows.sum[1] = before[1] * rows.sum[1] + weight[1] * share.w;
#pragma unroll
      for (int group = first_group; group < min(first_group + kGroupsAtOnce, kGroupsOfCta); ++group) {
        const float4 piece = pieces[128 * (1 + group)];
        float* of_group = o + 4 * group;
        of_group[0] = before[0] * of_group[0] + weight[0] * piece.x;
        of_group[1] = before[0] * of_group[1] + weight[0] * piece.y;
        of_group[2] = before[1] * of_group[2] + weight[1] * piece.z;
        of_group[3] = before[1] * of_group[3] + weight[1] * piece.w;
      }
    }
  }
}

// For the other sharers.
__device__ __forceinline__ void put_pieces(float4* to, const SoftmaxState& rows,
                                           const float (&o)[4 * kGroupsOfCta]) {
  to[0] = make_float4(rows.shift[0], rows.shift[1], rows.sum[0], rows.sum[1]);
#pragma unroll
  for (int group = 0; group < kGroupsOfCta; ++group) {
    const float* of_group = o + 4 * group;
    to[128 * (1 + group)] = make_float4(of_group[0], of_group[1], of_group[2], of_group[3]);
  }
}

// What the sharers from one of them on have put down, to what is there.
__device__ __forceinline__ void add_pieces(const Sharers& sharers, const Consumer& consumer, int from,
                                           SoftmaxState& rows, float (&o)[4 * kGroupsOfCta],
                                           const ForwardParams& p) {
  const SoftmaxState before = rows;
#pragma unroll
  for (int group = 0; group < kGroupsOfCta; group += kGroupsAtOnce) {
    rows = before;
    add_groups(sharers, consumer, from, group, rows, o, p);
  }
}

// Puts down what this CTA knows of a tile; where all others have done so, makes it what all know. False where
// that is another warp's to do.
__device__ __forceinline__ bool merge_sharers(const Sharers& sharers, const Consumer& consumer,
                                              const Tile& tile, SoftmaxState& rows,
                                              float (&o)[4 * kGroupsOfCta], const ForwardParams& p) {
  int from = 0;
  /*%#even%*/
  if (tile.first == 0 && others_are_there(sharers, consumer, p)) {
    from = 1;
#pragma unroll
    for (int i = 0; i < 4 * kGroupsOfCta; ++i) o[i] += 0.0f;  // the same bits: not -0, which 0 + -0 is not
  }
  /*%/even%*/
  if (from == 0) {
    put_pieces(pieces_at(own_place(tile, p), consumer, p), rows, o);
    if (!comes_last(sharers, consumer, p)) return false;
    rows = SoftmaxState();
#pragma unroll
    for (int i = 0; i < 4 * kGroupsOfCta; ++i) o[i] = 0;
  }
  add_pieces(sharers, consumer, from, rows, o, p);
  return true;
}
