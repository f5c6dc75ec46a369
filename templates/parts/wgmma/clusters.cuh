// Where several clusters share out a tile's keys: what a CTA has added up of its columns goes to device
// memory, and of the warps that have the same rows and columns, one in each cluster, the last one to come
// adds up all. They are added in the order of the clusters, so that it does not matter which one that is.
#pragma once
#include "params/forward.h"
#include "parts/wgmma/consumer.cuh"
#include "parts/wgmma/layout.cuh"
#include "parts/wgmma/rows.cuh"
#include "parts/wgmma/softmax.cuh"
#include "parts/wgmma/tiles.cuh"
#include "ptx/add_acquire_release.cuh"
#include "ptx/cluster.cuh"
#include "ptx/math.cuh"
#include "ptx/shuffle.cuh"

constexpr int kPiecesOfThread = 1 + kGroupsOfCta;  // its rows' shifts and sums; its columns of each group
constexpr int kClustersAtOnce = kPiecesOfThread <= 3 ? 8 : kPiecesOfThread <= 6 ? 4 : 2;  // on their way

// Where the thread that has this one's rows and columns in another of the tile's clusters puts its pieces,
// each 128 from the last.
__device__ __forceinline__ float4* pieces_of(int cluster, const Consumer& consumer, const ForwardParams& p) {
  const int cta = (only_tile(p) * p.clusters + cluster) * kCluster + cluster_rank();
  const int warpgroup = cta * kWarpgroups + consumer.warpgroup;
  return reinterpret_cast<float4*>(p.pieces) + 128 * kPiecesOfThread * warpgroup + threadIdx.x % 128;
}

// Whether this warp comes after those of all the tile's other clusters, whose pieces it sees then. A counter
// has a byte for each warp of a warpgroup.
__device__ __forceinline__ bool comes_last(const Consumer& consumer, const ForwardParams& p) {
  int* counter =
      p.tile_counter + (only_tile(p) * kCluster + cluster_rank()) * kWarpgroups + consumer.warpgroup;
  const int bits = 8 * warp_of_warpgroup();
  int before = 0;
  __syncwarp();  // all of the warp's pieces come before …
  if (lane() == 0) before = add_acquire_release(counter, 1 << bits) >> bits & 255;
  __syncwarp();  // … and what any of its lanes reads comes after
  before = __shfl_sync(0xffffffffu, before, 0);
  const bool last = before == p.clusters - 1;
  if (last && lane() == 0) atomicSub(counter, p.clusters << bits);
  return last;
}

// Makes rows and columns what all of the tile's clusters know of them; false where that is another warp's to
// do.
__device__ __forceinline__ bool add_clusters(const Consumer& consumer, SoftmaxState& rows,
                                             float (&o)[kGroupsOfCta][4], const ForwardParams& p) {
  float4* mine = pieces_of(cluster_of_tile(p), consumer, p);
  mine[0] = make_float4(rows.shift[0], rows.shift[1], rows.sum[0], rows.sum[1]);
#pragma unroll
  for (int group = 0; group < kGroupsOfCta; ++group) {
    mine[128 * (1 + group)] = make_float4(o[group][0], o[group][1], o[group][2], o[group][3]);
  }
  if (!comes_last(consumer, p)) return false;

  rows = SoftmaxState();
#pragma unroll
  for (int group = 0; group < kGroupsOfCta; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) o[group][i] = 0;
  }
#pragma unroll 1
  for (int first = 0; first < p.clusters; first += kClustersAtOnce) {
#pragma unroll
    for (int cluster = first; cluster < first + kClustersAtOnce; ++cluster) {
      const float4* pieces = pieces_of(min(cluster, p.clusters - 1), consumer, p);
      float4 share = pieces[0];
      if (cluster >= p.clusters) share.x = share.y = kUnset;  // weighs nothing
      const float shift[2] = {fmaxf(rows.shift[0], share.x), fmaxf(rows.shift[1], share.y)};
      const float before[2] = {exp2_fast(rows.shift[0] - shift[0]), exp2_fast(rows.shift[1] - shift[1])};
      const float weight[2] = {exp2_fast(share.x - shift[0]), exp2_fast(share.y - shift[1])};
      rows.shift[0] = shift[0];
      rows.shift[1] = shift[1];
      rows.sum[0] = before[0] * rows.sum[0] + weight[0] * share.z;
      rows.sum[1] = before[1] * rows.sum[1] + weight[1] * share.w;
#pragma unroll
      for (int group = 0; group < kGroupsOfCta; ++group) {
        const float4 piece = pieces[128 * (1 + group)];
        o[group][0] = before[0] * o[group][0] + weight[0] * piece.x;
        o[group][1] = before[0] * o[group][1] + weight[0] * piece.y;
        o[group][2] = before[1] * o[group][2] + weight[1] * piece.z;
        o[group][3] = before[1] * o[group][3] + weight[1] * piece.w;
      }
    }
  }
  return true;
}
