// dQ in fp32, on tensor cores that multiply bf16: the second kernel of a backward pass that adds nothing up
// in memory. Numbers are split as in the kernel that owns keys. A CTA owns kTileM query rows of one head; K
// and V stream through shared memory. Each warp owns 16 rows from S to dQ, so that its dS already is a
// fragment of the last product (split-Q, as in the forward pass).
#include "params/backward.h"
#include "parts/mma/backward_query_tile.cuh"
#include "parts/mma/backward_weights_split.cuh"
#include "parts/mma/loader_split.cuh"
#include "parts/mma/split_products.cuh"
#include "parts/mma/visible_keys.cuh"
#include "ptx/finite.cuh"
#include "ptx/infinity.cuh"
#include "ptx/math.cuh"
#include "ptx/shared_address.cuh"

extern "C" __global__ void __launch_bounds__(kThreads)
    FLASHJIT_ENTRY(const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  const unsigned shared = shared_address(shared_bytes);  // where the parts of Q begin

  const QueryTile tile = query_tile_of_block(params);
  const int first_row = tile.m * kTileM;
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x / 32 * 16;  // the warp's first, in the tile

  const VisibleKeys visible(params, first_row);

  float dq[(kHeadDim + 15) / 16 * 8] = {};  // this thread's part of the warp's rows
  if (visible.masked_end > 0) {
    const int head_kv = tile.head / params.group;
    SplitCopy<kTileN, kHeadDim> k_copy(
        head_of(params.k, tile.batch * params.k_batch, head_kv * params.k_head), params.k_row);
    SplitCopy<kTileN, kHeadDimV> v_copy(
        head_of(params.v, tile.batch * params.v_batch, head_kv * params.v_head), params.v_row);
    const auto as_it_is = [](float x) { return x; };
    {
      SplitCopy<kTileM, kHeadDim> q_copy(
          head_of(params.q, tile.batch * params.q_batch, tile.head * params.q_head), params.q_row);
      q_copy.start(first_row, params.seqlen_q);
      q_copy.finish(shared, as_it_is);
    }
    {
      SplitCopy<kTileM, kHeadDimV> dout_copy(
          head_of(params.dout, tile.batch * params.dout_batch, tile.head * params.dout_head),
          params.dout_row);
      dout_copy.start(first_row, params.seqlen_q);
      dout_copy.finish(shared + kOffsetDout, as_it_is);
    }
    k_copy.start(0, params.seqlen_k);

    // LSE and delta. Rows that do not exist are zeros, and are not written. LSE is +inf, so that P is 0, for
    // rows that see no key, or none whose score is above -inf.
    const int pair = tile.batch * params.heads + tile.head;
    float lse[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + warp_row + 8 * half + lane / 4;
      const bool inside = row < params.seqlen_q;
      lse[half] = inside ? params.lse[static_cast<long long>(pair) * params.seqlen_q + row] : 0.0f;
      if (lse[half] == -kInfinity) lse[half] = kInfinity;
      delta[half] = inside ? params.delta[static_cast<long long>(pair) * params.padded_q + row] : 0.0f;
    }

    // Where this lane starts to read.
    const unsigned q_lane = shared + warp_row * TileQK::kPitch + lane_offset_rows_first<TileQK>(lane);
    const unsigned dout_lane =
        shared + kOffsetDout + warp_row * TileV::kPitch + lane_offset_rows_first<TileV>(lane);
    const unsigned k_tile = shared + kOffsetK, v_tile = shared + kOffsetV;
    for (int n = 0; n < visible.masked_end; ++n) {
      // V is loaded beside the first product, and the next tile of K beside the others, so that registers
      // hold only one of them at a time.
      k_copy.finish(k_tile, finite);
      __syncthreads();
      v_copy.start(n * kTileN, params.seqlen_k);
      SplitSum<kTileN / 2> scores;
      multiply_rows<TileQK, kTileM, kTileN, kTileN>(scores, q_lane,
                                                    k_tile + lane_offset_columns_first<TileQK>(lane));
      float log2_weights[kTileN / 2];
#pragma unroll
      for (int i = 0; i < kTileN / 2; ++i)
        log2_weights[i] = log2_weight(scores.high[i], scores.low[i], params.scale, lse[i / 2 % 2]);
      if (n >= visible.unmasked_end) visible.mask(log2_weights, warp_row, n * kTileN, params);

      v_copy.finish(v_tile, as_it_is);
      __syncthreads();
      if (n + 1 < visible.masked_end) k_copy.start((n + 1) * kTileN, params.seqlen_k);
      SplitSum<kTileN / 2> dp;
      multiply_rows<TileV, kTileM, kTileN, kTileN>(dp, dout_lane,
                                                   v_tile + lane_offset_columns_first<TileV>(lane));
      unsigned ds[kTileN / 16][kParts][4];
#pragma unroll
      for (int step = 0; step < kTileN / 16; ++step) {
        float of_step[8];
#pragma unroll
        for (int x = 0; x < 8; ++x) {
          const int i = 8 * step + x;
          of_step[x] = exp2_fast(log2_weights[i]) * (dp.at(i) - delta[i / 2 % 2]);
        }
        split_fragment(ds[step], of_step);
      }
      add_columns<kHeadDim, 1>(dq, ds, k_tile + lane_offset_rows_first<TileQK>(lane), 0);
      __syncthreads();  // no warp reads K or V any more
    }
  }

  float* const to =
      static_cast<float*>(params.dq) + tile.batch * params.dq_batch + tile.head * params.dq_head;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + warp_row + 8 * half + lane / 4;
    if (row >= params.seqlen_q) continue;
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i) {
      *reinterpret_cast<float2*>(to + row * params.dq_row + 8 * i + lane % 4 * 2) =
          float2{dq[4 * i + 2 * half] * params.scale, dq[4 * i + 2 * half + 1] * params.scale};
    }
  }
}
