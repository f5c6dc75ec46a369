// The end of a tile whose keys the CTAs of a cluster have shared out. Each CTA sends all the others its rows'
// shifts and sums, and sends each of them some columns of its O, which the receiver adds up, normalises and
// stores. Where a tile has several clusters, the results of the other clusters are added first (pieces.cuh).
#pragma once
#include "params/forward.h"
#include "parts/wgmma/consumer.cuh"
#include "parts/wgmma/layout.cuh"
/*%#lse%*/
#include "parts/wgmma/lse.cuh"
/*%/lse%*/
#include "parts/wgmma/output_registers.cuh"
#include "parts/wgmma/pieces.cuh"
#include "parts/wgmma/rows.cuh"
#include "parts/wgmma/softmax.cuh"
#include "parts/wgmma/store_columns.cuh"
#include "parts/wgmma/tiles.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cluster_floats.cuh"
#include "ptx/math.cuh"
#include "ptx/shared_four.cuh"
#include "ptx/shared_pair.cuh"
#include "ptx/shuffle.cuh"

// Where one of the cluster's CTAs puts what a thread has of eight columns …
__device__ __forceinline__ unsigned piece_from(int rank, int group, const Consumer& consumer) {
  const int piece = (rank * kWarpgroups + consumer.warpgroup) * kGroupsOfCta + group;
  return consumer.shared + kPieces + kPieceBytes * (128 * piece + static_cast<int>(threadIdx.x % 128));
}

// … and the shift and the sum of the first of the thread's two rows.
__device__ __forceinline__ unsigned sums_from(int rank, const Consumer& consumer) {
  const int row = 64 * (rank * kWarpgroups + consumer.warpgroup) + 16 * warp_of_warpgroup() + lane() / 4;
  return consumer.shared + kSums + 8 * row;
}

// Sends every CTA this one's shifts and sums, and the columns that it adds up.
__device__ __forceinline__ void send(const Consumer& consumer) {
  const SoftmaxState& rows = consumer.softmax.rows;
  float o[kHeadDimV / 2];
  read_output(o);
  const float sum[2] = {quad_sum(rows.sum[0]), quad_sum(rows.sum[1])};
  const int here = cluster_rank();
#pragma unroll
  for (int rank = 0; rank < kCluster; ++rank) {
    if (lane() % 4 == 0) {
      const unsigned there = in_cta(rank, sums_from(here, consumer));
      cluster_store(there, make_float2(rows.shift[0], sum[0]));
      cluster_store(there + 8 * 8, make_float2(rows.shift[1], sum[1]));
    }
    const unsigned there = in_cta(rank, piece_from(here, 0, consumer));
#pragma unroll
    for (int group = 0; group < kGroupsOfCta; ++group) {
      const int x = 4 * (rank * kGroupsOfCta + group);
      if (x < kHeadDimV / 2) {
        cluster_store(there + group * 128 * kPieceBytes, make_float4(o[x], o[x + 1], o[x + 2], o[x + 3]));
      }
    }
  }
}

// The weights of the CTAs' shares of a row, and the whole row's shift and sum.
struct MergedRows {
  SoftmaxState rows;
  float weight[kCluster][2];

  __device__ __forceinline__ explicit MergedRows(const Consumer& consumer) {
    float2 share[kCluster][2];  // shift and sum
#pragma unroll
    for (int rank = 0; rank < kCluster; ++rank) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        share[rank][row] = load_pair(sums_from(rank, consumer) + 8 * 8 * row);
        rows.shift[row] = fmaxf(rows.shift[row], share[rank][row].x);
      }
    }
#pragma unroll
    for (int rank = 0; rank < kCluster; ++rank) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        weight[rank][row] = exp2_fast(share[rank][row].x - rows.shift[row]);
        rows.sum[row] += weight[rank][row] * share[rank][row].y;
      }
    }
  }
};

// Adds up this CTA's columns of all shares.
__device__ __forceinline__ void add_up(const Consumer& consumer, const MergedRows& merged,
                                       float (&o)[4 * kGroupsOfCta]) {
#pragma unroll
  for (int group = 0; group < kGroupsOfCta; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) o[4 * group + i] = 0;
    if (first_column(group) >= kHeadDimV) continue;
#pragma unroll
    for (int rank = 0; rank < kCluster; ++rank) {
      const float4 piece = load_four(piece_from(rank, group, consumer));
      o[4 * group + 0] += merged.weight[rank][0] * piece.x;
      o[4 * group + 1] += merged.weight[rank][0] * piece.y;
      o[4 * group + 2] += merged.weight[rank][1] * piece.z;
      o[4 * group + 3] += merged.weight[rank][1] * piece.w;
    }
  }
}

__device__ __forceinline__ void merge(const Consumer& consumer, const Tile& tile, const ForwardParams& p) {
  const RowsOfThread mine(tile.row + kRowStep * consumer.warpgroup, p);
  const bool has_rows = mine.row - lane() / 4 < row_count(p);  // whether the warp has any
  cluster_sync();  // all have begun, and nobody needs K and V any more, whose place the pieces take
  if (has_rows) send(consumer);
  cluster_sync();
  if (!has_rows) return;
  MergedRows merged(consumer);
  float o[4 * kGroupsOfCta];  // two columns of two rows of each group
  add_up(consumer, merged, o);
  if (p.clusters > 1 && !merge_sharers(Sharers(tile, p), consumer, tile, merged.rows, o, p)) return;
  /*%#lse%*/
  if (cluster_rank() == 0) store_lse(tile, mine, merged.rows, merged.rows.sum, p);
  /*%/lse%*/
  store_columns(o, merged.rows, tile, mine, p);
}
