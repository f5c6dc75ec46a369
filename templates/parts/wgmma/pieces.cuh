// How CTAs that have the same rows and columns of a tile, but different keys, merge their results through
// device memory. Each puts down what it has added up, and the last of them to come adds up all. The pieces
// are added in the order of their CTAs, so that it does not matter which one comes last.
#pragma once
#include "params/forward.h"
#include "parts/wgmma/consumer.cuh"
#include "parts/wgmma/layout.cuh"
/*%#even%*/
#include "parts/wgmma/output_registers.cuh"
/*%/even%*/
#include "parts/wgmma/sharers.cuh"
#include "parts/wgmma/softmax.cuh"
#include "parts/wgmma/tiles.cuh"
#include "ptx/math.cuh"

constexpr int kPiecesOfThread = 1 + kGroupsOfCta;  // its rows' shifts and sums, then one per group of columns

// Where this thread's pieces begin among those of its warpgroup; each is 128 from the last.
__device__ __forceinline__ float4* pieces_at(int place, const Consumer& consumer, const ForwardParams& p) {
  const int warpgroup = place * kWarpgroups + consumer.warpgroup;
  return reinterpret_cast<float4*>(p.pieces) + 128 * kPiecesOfThread * warpgroup + threadIdx.x % 128;
}

__device__ __forceinline__ float4 piece_of_rows(const SoftmaxState& rows) {
  return make_float4(rows.shift[0], rows.shift[1], rows.sum[0], rows.sum[1]);
}

// A sharer's rows join those that are there. The members are the weights of both sides' columns.
struct Join {
  float before[2], weight[2];

  __device__ __forceinline__ Join(SoftmaxState& rows, const float4& share) {
    const float shift[2] = {fmaxf(rows.shift[0], share.x), fmaxf(rows.shift[1], share.y)};
    const float of_share[2] = {share.x, share.y}, sum[2] = {share.z, share.w};
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      before[row] = exp2_fast(rows.shift[row] - shift[row]);
      weight[row] = exp2_fast(of_share[row] - shift[row]);
      rows.shift[row] = shift[row];
      rows.sum[row] = before[row] * rows.sum[row] + weight[row] * sum[row];
    }
  }
};

/*%#split%*/
// Loads in flight: this many groups of columns, of this many sharers. Three warpgroups and more have fewer
// registers.
constexpr int kGroupsAtOnce = kHeadDimV <= 128 ? 16 : 8;
constexpr int kSharersAtOnce = kPiecesOfThread <= 3 ? 8 : kPiecesOfThread <= 6 ? 4 : kWarpgroups <= 2 ? 2 : 1;

// Adds the rows of all sharers, and some groups of their columns.
__device__ __forceinline__ void add_groups(const Sharers& sharers, const Consumer& consumer, int first_group,
                                           SoftmaxState& rows, float (&o)[4 * kGroupsOfCta],
                                           const ForwardParams& p) {
#pragma unroll 1
  for (int first = 0; first < sharers.count; first += kSharersAtOnce) {
#pragma unroll
    for (int which = first; which < first + kSharersAtOnce; ++which) {
      const float4* pieces = pieces_at(sharers.place_of(min(which, sharers.count - 1), p), consumer, p);
      float4 share = pieces[0];
      if (which >= sharers.count) share.x = share.y = kUnset;  // weighs nothing
      const Join join(rows, share);
#pragma unroll
      for (int group = first_group; group < min(first_group + kGroupsAtOnce, kGroupsOfCta); ++group) {
        // No infinity is taken for a sharer that is missing: no weight makes 0 of it.
        const float4 piece = which < sharers.count ? pieces[128 * (1 + group)] : float4{0, 0, 0, 0};
        float* of_group = o + 4 * group;
        of_group[0] = join.before[0] * of_group[0] + join.weight[0] * piece.x;
        of_group[1] = join.before[0] * of_group[1] + join.weight[0] * piece.y;
        of_group[2] = join.before[1] * of_group[2] + join.weight[1] * piece.z;
        of_group[3] = join.before[1] * of_group[3] + join.weight[1] * piece.w;
      }
    }
  }
}

// Puts down this CTA's pieces for the other sharers.
__device__ __forceinline__ void put_pieces(float4* to, const SoftmaxState& rows,
                                           const float (&o)[4 * kGroupsOfCta]) {
  to[0] = piece_of_rows(rows);
#pragma unroll
  for (int group = 0; group < kGroupsOfCta; ++group) {
    const float* of_group = o + 4 * group;
    to[128 * (1 + group)] = make_float4(of_group[0], of_group[1], of_group[2], of_group[3]);
  }
}

// Adds up what all sharers have put down.
__device__ __forceinline__ void add_pieces(const Sharers& sharers, const Consumer& consumer,
                                           SoftmaxState& rows, float (&o)[4 * kGroupsOfCta],
                                           const ForwardParams& p) {
#pragma unroll
  for (int i = 0; i < 4 * kGroupsOfCta; ++i) o[i] = -0.0f;  // adding the first piece to it keeps every bit
#pragma unroll
  for (int group = 0; group < kGroupsOfCta; group += kGroupsAtOnce) {
    rows = SoftmaxState();
    add_groups(sharers, consumer, group, rows, o, p);
  }
}

// Puts down this CTA's pieces of a tile. If all others have done so, adds up everyone's and returns true; if
// not, this is left to another CTA.
__device__ __forceinline__ bool merge_sharers(const Sharers& sharers, const Consumer& consumer,
                                              const Tile& tile, SoftmaxState& rows,
                                              float (&o)[4 * kGroupsOfCta], const ForwardParams& p) {
  put_pieces(pieces_at(own_place(tile, p), consumer, p), rows, o);
  if (!comes_last(sharers, consumer, p)) return false;
  add_pieces(sharers, consumer, rows, o, p);
  return true;
}
/*%/split%*/
/*%#even%*/
// Puts down this CTA's pieces for the other sharers.
__device__ __forceinline__ void put_pieces(float4* to, const SoftmaxState& rows) {
  to[0] = piece_of_rows(rows);
  put_output(to + 128);
}

// Takes what the first sharer has put down.
__device__ __forceinline__ void take_pieces(const float4* from, SoftmaxState& rows) {
  const float4 share = from[0];
  rows.shift[0] = share.x;
  rows.shift[1] = share.y;
  rows.sum[0] = share.z;
  rows.sum[1] = share.w;
  take_output(from + 128);
}

// Adds what the other sharers have put down to the first one's.
__device__ __forceinline__ void add_pieces(const Sharers& sharers, const Consumer& consumer,
                                           SoftmaxState& rows, const ForwardParams& p) {
#pragma unroll 1
  for (int which = 1; which < sharers.count; ++which) {
    const float4* pieces = pieces_at(sharers.place_of(which, p), consumer, p);
    const Join join(rows, pieces[0]);
    add_output(pieces + 128, join.before, join.weight);
  }
}

// Puts down this CTA's pieces of a tile. If all others have done so, adds up everyone's and returns true; if
// not, this is left to another CTA. The first sharer puts nothing down if it comes last. Warps without rows
// do the same as the others: a branch for them would cost the compilers a tenth of their time.
__device__ __forceinline__ bool merge_sharers(const Sharers& sharers, const Consumer& consumer,
                                              const Tile& tile, SoftmaxState& rows, const ForwardParams& p) {
  if (tile.first != 0 || !others_are_there(sharers, consumer, p)) {
    put_pieces(pieces_at(own_place(tile, p), consumer, p), rows);
    if (!comes_last(sharers, consumer, p)) return false;
    take_pieces(pieces_at(sharers.place_of(0, p), consumer, p), rows);
  }
  add_pieces(sharers, consumer, rows, p);
  return true;
}
/*%/even%*/
