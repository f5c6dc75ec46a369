// Where CTAs that have the same rows and columns of a tile, and keys of their own, tell each other through
// device memory: each puts what it has added up there, and of those that have the same rows the last one to
// come adds up all. They are added in the order of their CTAs, so that it does not matter which one that is.
#pragma once
#include "params/forward.h"
#include "parts/wgmma/consumer.cuh"
#include "parts/wgmma/layout.cuh"
#include "parts/wgmma/sharers.cuh"
#include "parts/wgmma/softmax.cuh"
#include "parts/wgmma/tiles.cuh"
#include "ptx/math.cuh"

constexpr int kPiecesOfThread = 1 + kGroupsOfCta;  // its rows' shifts and sums; its columns of each group
// Loads in flight: of this many groups of columns, of this many sharers.
/*%#split%*/
// Three warpgroups and more have fewer registers.
constexpr int kGroupsAtOnce = kHeadDimV <= 128 ? 16 : 8;
constexpr int kSharersAtOnce = kPiecesOfThread <= 3 ? 8 : kPiecesOfThread <= 6 ? 4 : kWarpgroups <= 2 ? 2 : 1;
/*%/split%*/
/*%#even%*/
constexpr int kGroupsAtOnce = 16;
constexpr int kSharersAtOnce = 1;  // a tile has two, as a rule
/*%/even%*/

// Of one warpgroup, where this thread's begin; each is 128 from the last.
__device__ __forceinline__ float4* pieces_at(int place, const Consumer& consumer, const ForwardParams& p) {
  const int warpgroup = place * kWarpgroups + consumer.warpgroup;
  return reinterpret_cast<float4*>(p.pieces) + 128 * kPiecesOfThread * warpgroup + threadIdx.x % 128;
}

// Adds the rows of the sharers from one of them on, and some groups of their columns.
__device__ __forceinline__ void add_groups(const Sharers& sharers, const Consumer& consumer, int from,
                                           int first_group, SoftmaxState& rows, float (&o)[4 * kGroupsOfCta],
                                           const ForwardParams& p) {
#pragma unroll 1
  for (int first = from; first < sharers.count; first += kSharersAtOnce) {
#pragma unroll
    for (int which = first; which < first + kSharersAtOnce; ++which) {
      /*%#split%*/
      const float4* pieces = pieces_at(sharers.place_of(min(which, sharers.count - 1), p), consumer, p);
      float4 share = pieces[0];
      if (which >= sharers.count) share.x = share.y = kUnset;  // weighs nothing
      /*%/split%*/
      /*%#even%*/
      const float4* pieces = pieces_at(sharers.place_of(which, p), consumer, p);
      const float4 share = pieces[0];
      /*%/even%*/
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
// that is for another CTA to do. Where the warp has no rows it only takes part in that.
__device__ __forceinline__ bool merge_sharers(const Sharers& sharers, const Consumer& consumer,
                                              const Tile& tile, bool has_rows, SoftmaxState& rows,
                                              float (&o)[4 * kGroupsOfCta], const ForwardParams& p) {
  int from = 0;
  /*%#even%*/
  if (tile.first == 0 && others_are_there(sharers, consumer, p)) from = 1;
  /*%/even%*/
  if (from == 0) {
    if (has_rows) put_pieces(pieces_at(own_place(tile, p), consumer, p), rows, o);
    if (!comes_last(sharers, consumer, p)) return false;
    rows = SoftmaxState();
#pragma unroll
    for (int i = 0; i < 4 * kGroupsOfCta; ++i) o[i] = -0.0f;  // to which the first is added bit for bit
  }
  if (has_rows) add_pieces(sharers, consumer, from, rows, o, p);
  return true;
}
