// FlashAttention-2's backward pass (Dao, arXiv 2307.08691, algorithm 2) on warp-level tensor cores. A CTA
// owns kTileN keys of one K/V head, and the rows of Q and dO of all query heads that share the K/V head
// stream past. Half of the warps compute S^T = K Q^T, P^T and dV; the other half compute dP^T = V dO^T, dS^T
// and dK. Each warp does so for its own keys, so that its P^T or dS^T already is a fragment of the next
// product. One half's exponentials run beside the other half's products.
/*%#shared_keys%*/
// Two warps of a half share their keys. Each takes half of the rows for S^T and dP^T, and half of the columns
// for dV and dK; they exchange P^T and dS^T in shared memory. So a warp's blocks are closer to square, and
// load fewer fragments.
/*%/shared_keys%*/
#include "params/backward.h"
/*%#causal%*/
#include "parts/diagonal.cuh"
/*%/causal%*/
/*%#ds_tile%*/
#include "parts/mma/backward_ds.cuh"
/*%/ds_tile%*/
#include "parts/mma/backward_rows.cuh"
/*%#async%*/
#include "parts/mma/loader_async.cuh"
/*%/async%*/
/*%^async%*/
#include "parts/mma/loader_staged.cuh"
/*%/async%*/
/*%#dq_sum%*/
#include "parts/mma/backward_dq_sum.cuh"
/*%/dq_sum%*/
#include "parts/mma/backward_key_tile.cuh"
#include "parts/mma/backward_own_keys.cuh"
#include "parts/mma/backward_place.cuh"
#include "parts/mma/backward_weights.cuh"
#include "parts/mma/head_of.cuh"
#include "parts/mma/multiply_columns.cuh"
#include "parts/mma/row_output.cuh"
#include "parts/mma/warp_products.cuh"
#include "ptx/convert.cuh"
#include "ptx/load_shared_16.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/named_barrier_arrive.cuh"
#include "ptx/shared_address.cuh"
#include "ptx/shared_pair.cuh"
#include "ptx/unpack.cuh"

using TileQK = SharedTile<kHeadDim>;
using TileV = SharedTile<kHeadDimV>;

extern "C" __global__ void __launch_bounds__(kThreads/*%#min_ctas%*/, kMinCtas/*%/min_ctas%*/)
    FLASHJIT_ENTRY(const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned k_tile = shared_address(shared);
  const unsigned v_tile = k_tile + kTileBytesK;
  const unsigned stages = v_tile + kTileBytesV;  // kStages of them: Q, dO, and their rows' LSE and delta
  const unsigned p_tile = stages + kStages * kStageBytes;  // P^T in fragments, passed between the halves
  /*%#ds_tile%*/
  const unsigned ds_tile = p_tile + kTileBytesP;
  /*%/ds_tile%*/

  const KeyTile tile = key_tile_of_block(params);
  const int first_key = tile.n * kTileN;

  const int tiles_q = (params.seqlen_q + kTileM - 1) / kTileM;
  /*%#causal%*/
  // Rows of tiles before first_m see none of this CTA's keys; rows of tiles from unmasked_m on see all of
  // them.
  const int first_m = max(first_key - diagonal(params), 0) / kTileM;
  const int unmasked_m = (max(first_key + kTileN - 1 - diagonal(params), 0) + kTileM - 1) / kTileM;
  /*%/causal%*/
  /*%^causal%*/
  const int first_m = 0;
  /*%/causal%*/
  const int steps = params.group * max(tiles_q - first_m, 0);

  // Where the next copies come from.
  int copy_m = first_m;
  const int first_head = tile.head * params.group;
  const int first_pair = tile.batch * params.heads + first_head;  // of (batch, head) pairs
  TileCopy<kTileM, kHeadDim> q_copy(
      head_of(params.q, tile.batch * params.q_batch, first_head * params.q_head), params.q_row);
  TileCopy<kTileM, kHeadDimV> dout_copy(
      head_of(params.dout, tile.batch * params.dout_batch, first_head * params.dout_head), params.dout_row);
  /*%#async%*/
  // A thread has the same place in tiles of the same width, which the compiler cannot see.
  if (kHeadDim == kHeadDimV) dout_copy.row = q_copy.row, dout_copy.chunk = q_copy.chunk;
  /*%/async%*/
  RowCopy row_copy(params, static_cast<long long>(first_pair) * params.padded_q);
  const auto start_copies = [&](unsigned stage) {
    q_copy.start<true>(stage, copy_m * kTileM, params.seqlen_q);
    /*%#copies_in_turn%*/
    q_copy.finish();  // so that registers hold only one tile at a time
    /*%/copies_in_turn%*/
    dout_copy.start<true>(stage + kTileBytesQ, copy_m * kTileM, params.seqlen_q);
    /*%#copies_in_turn%*/
    dout_copy.finish();
    /*%/copies_in_turn%*/
    row_copy.start(stage + kTileBytesQ + kTileBytesDout, copy_m * kTileM);
    /*%#async%*/
    cp_async_commit();
    /*%/async%*/
    if (++copy_m == tiles_q) {
      copy_m = first_m;
      row_copy.source += params.padded_q;
      q_copy.source += 2 * params.q_head;
      dout_copy.source += 2 * params.dout_head;
    }
  };
  const auto finish_copies = [&] {
    /*%#async%*/
    cp_async_wait<0>();
    /*%/async%*/
    /*%^async%*/
    /*%^copies_in_turn%*/
    q_copy.finish();
    dout_copy.finish();
    /*%/copies_in_turn%*/
    row_copy.finish();
    /*%/async%*/
    named_barrier_sync(0, kThreads);  // __syncthreads(), which the halves reach from two places
  };

  if (steps > 0) {
    TileCopy<kTileN, kHeadDim> k_copy(
        head_of(params.k, tile.batch * params.k_batch, tile.head * params.k_head), params.k_row);
    k_copy.start<true>(k_tile, first_key, params.seqlen_k);
    /*%^async%*/
    k_copy.finish();
    /*%/async%*/
    TileCopy<kTileN, kHeadDimV> v_copy(
        head_of(params.v, tile.batch * params.v_batch, tile.head * params.v_head), params.v_row);
    v_copy.start<true>(v_tile, first_key, params.seqlen_k);
    /*%^async%*/
    v_copy.finish();
    /*%/async%*/
    start_copies(stages);
  }

  int m = first_m;  // the current step's tile of rows
  /*%#dq_sum%*/
  int pair = first_pair;
  /*%/dq_sum%*/
  // Where step i has Q, dO, and their rows' LSE and delta.
  /*%#two_stages%*/
  const auto stage_of = [&](int i) { return stages + i % 2 * kStageBytes; };
  /*%/two_stages%*/
  /*%^two_stages%*/
  const auto stage_of = [&](int) { return stages; };
  /*%/two_stages%*/
  /*%#ds_tile%*/
  /*%#two_stages%*/
  const auto ds_of = [&](int i) { return ds_tile + i % 2 * kTileBytesP; };
  /*%/two_stages%*/
  /*%^two_stages%*/
  const auto ds_of = [&](int) { return ds_tile; };
  /*%/two_stages%*/
  /*%/ds_tile%*/
  // A step begins when its rows have arrived and no warp still works on the step before.
  /*%#two_stages%*/
  const auto begin = [&](int i) {
    finish_copies();
    if (i + 1 < steps) start_copies(stage_of(i + 1));
  };
  /*%/two_stages%*/
  /*%^two_stages%*/
  const auto begin = [&](int) { finish_copies(); };
  /*%/two_stages%*/
  /*%#dq_before%*/
  // Each step adds the dQ of the step before, whose dS all warps have written by then.
  const auto add_dq_before = [&](int i) {
    if (i > 0) {
      const bool first = m == first_m;
      add_dq(ds_of(i - 1), k_tile, first ? pair - 1 : pair, first ? tiles_q - 1 : m - 1, params);
    }
  };
  /*%/dq_before%*/
  /*%#two_stages%*/
  const auto end = [&](int) {
    /*%/two_stages%*/
    /*%^two_stages%*/
  const auto end = [&](int i) {
    named_barrier_sync(0, kThreads);
    if (i + 1 < steps) start_copies(stages);
    /*%#dq_sum%*/
    add_dq(ds_of(i), k_tile, pair, m, params);
    /*%/dq_sum%*/
    /*%/two_stages%*/
    if (++m == tiles_q) {
      m = first_m;
      /*%#dq_sum%*/
      ++pair;
      /*%/dq_sum%*/
    }
  };
  const auto finish = [&] {
    /*%#dq_before%*/
    named_barrier_sync(0, kThreads);
    add_dq_before(steps);
    /*%/dq_before%*/
    named_barrier_sync(0, kThreads);  // nobody reads K or V any more
  };

  if (threadIdx.x < 32 * kHalf) {
    float dv[kRowTiles][kColumnsV / 2] = {};
    for (int i = 0; i < steps; ++i) {
      begin(i);
      const unsigned stage = stage_of(i);
      const Place at;
      float scores[kRowTiles][kOwnRows / 2];
      multiply_rows<TileQK, kRowTiles, kOwnRows>(
          scores, k_tile + at.first_key * TileQK::kPitch + lane_offset_rows_first<TileQK>(at.lane),
          stage + at.own_step * 16 * TileQK::kPitch + lane_offset_columns_first<TileQK>(at.lane));
      /*%#causal%*/
      const bool masked = m < unmasked_m;
      /*%/causal%*/
      /*%^causal%*/
      // Rows past the end of K are zeros, but exp(0 - LSE) may be infinite.
      const bool masked = first_key + kTileN > params.seqlen_k;
      /*%/causal%*/
      if (masked) hide_scores(scores, at, first_key, m * kTileM, params);
      unsigned p[kOwnSteps][kRowTiles][4];
      weigh(p, scores, at, stage + kTileBytesQ + kTileBytesDout, params.scale_log2);
      store_weights(p_tile, p, at);
      // Tells the warp of the other half that has these keys that P^T is written.
      named_barrier_arrive(1 + at.warp % kHalf, 64);
      const unsigned dout_lane =
          stage + kTileBytesQ + TileV::offset(at.lane % 16, at.part * kColumnsV / 8 + at.lane / 16);
#pragma unroll
      for (int step = 0; step < kOwnSteps; ++step)
        multiply_columns<TileV, kColumnsV>(dv, p[step], dout_lane + at.own_step * 16 * TileV::kPitch,
                                           16 * step);
      /*%#shared_keys%*/
      // Waits until the other warp that has these keys has written its P^T.
      named_barrier_sync(1 + kHalf + at.key_warp, 64);
#pragma unroll
      for (int step = 0; step < kOwnSteps; ++step) {
        unsigned others[kRowTiles][4];
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          const uint4 f =
              load_shared_16(p_tile + at.p_fragment + ((at.other_step + step) * kRowTiles + r) * 512);
          others[r][0] = f.x, others[r][1] = f.y, others[r][2] = f.z, others[r][3] = f.w;
        }
        multiply_columns<TileV, kColumnsV>(dv, others, dout_lane + at.other_step * 16 * TileV::kPitch,
                                           16 * step);
      }
      /*%/shared_keys%*/
      /*%#dq_before%*/
      add_dq_before(i);
      /*%/dq_before%*/
      end(i);
    }
    finish();
    const Place at;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
      stage_rows<kHeadDimV>(dv[r], v_tile, at.first_key + 16 * r, at.part * kColumnsV / 8, at.lane);
    /*%#shared_keys%*/
    // Waits until both warps have staged their columns of these keys.
    named_barrier_sync(1 + kHalf + at.key_warp, 64);
    /*%/shared_keys%*/
    /*%^shared_keys%*/
    __syncwarp();
    /*%/shared_keys%*/
    const OwnKeys own = own_keys(params, params.dv, params.dv_batch, params.dv_head, params.dv_row);
    write_rows<kHeadDimV, 16 * kRowTiles / kSharers>(v_tile, at.first_key + at.part * 8 * kRowTiles,
                                                     own.first, 2 * params.dv_row, own.count, at.lane);
  } else {
    float dk[kRowTiles][kColumnsK / 2] = {};
    for (int i = 0; i < steps; ++i) {
      begin(i);
      const unsigned stage = stage_of(i);
      /*%#dq_before%*/
      add_dq_before(i);
      /*%/dq_before%*/
      const Place at;
      float dp[kRowTiles][kOwnRows / 2];
      multiply_rows<TileV, kRowTiles, kOwnRows>(
          dp, v_tile + at.first_key * TileV::kPitch + lane_offset_rows_first<TileV>(at.lane),
          stage + kTileBytesQ + at.own_step * 16 * TileV::kPitch + lane_offset_columns_first<TileV>(at.lane));
      // Waits for P^T, which is overwritten only in the next step, after the whole CTA has synchronised.
      named_barrier_sync(1 + at.warp % kHalf, 64);
      const unsigned delta_lane =
          stage + kTileBytesQ + kTileBytesDout + kTileM * 4 + at.own_step * 64 + at.lane % 4 * 8;
      const unsigned q_lane = stage + TileQK::offset(at.lane % 16, at.part * kColumnsK / 8 + at.lane / 16);
#pragma unroll
      for (int step = 0; step < kOwnSteps; ++step) {
        const float2 delta[2] = {load_pair(delta_lane + 64 * step), load_pair(delta_lane + 64 * step + 32)};
        unsigned ds[kRowTiles][4];
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          const uint4 p4 =
              load_shared_16(p_tile + at.p_fragment + ((at.own_step + step) * kRowTiles + r) * 512);
          const unsigned p[4] = {p4.x, p4.y, p4.z, p4.w};
#pragma unroll
          for (int f = 0; f < 4; ++f) {
            const float* const of = &dp[r][8 * step + 2 * f];
            ds[r][f] =
                pack(low_half(p[f]) * (of[0] - delta[f / 2].x), high_half(p[f]) * (of[1] - delta[f / 2].y));
          }
          /*%#ds_tile%*/
          store_ds(ds_of(i), ds[r], at.first_key + 16 * r, at.own_step + step, at.lane);
          /*%/ds_tile%*/
        }
        multiply_columns<TileQK, kColumnsK>(dk, ds, q_lane + at.own_step * 16 * TileQK::kPitch, 16 * step);
      }
      /*%#shared_keys%*/
      // Waits until the other warp that has these keys has written its dS^T.
      named_barrier_sync(1 + kHalf + kKeyWarps + at.key_warp, 64);
      const unsigned ds_rows =
          ds_of(i) + TileDs::offset(at.first_key + at.lane % 16, 2 * at.other_step + at.lane / 16);
#pragma unroll
      for (int step = 0; step < kOwnSteps; ++step) {
        unsigned ds[kRowTiles][4];
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) ldmatrix(ds[r], TileDs::step(ds_rows, 16 * r, 2 * step));
        multiply_columns<TileQK, kColumnsK>(dk, ds, q_lane + at.other_step * 16 * TileQK::kPitch, 16 * step);
      }
      /*%/shared_keys%*/
      end(i);
    }
    finish();
    const Place at;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < kColumnsK / 2; ++i) dk[r][i] *= params.scale;
      stage_rows<kHeadDim>(dk[r], k_tile, at.first_key + 16 * r, at.part * kColumnsK / 8, at.lane);
    }
    /*%#shared_keys%*/
    // Waits until both warps have staged their columns of these keys.
    named_barrier_sync(1 + kHalf + kKeyWarps + at.key_warp, 64);
    /*%/shared_keys%*/
    /*%^shared_keys%*/
    __syncwarp();
    /*%/shared_keys%*/
    const OwnKeys own = own_keys(params, params.dk, params.dk_batch, params.dk_head, params.dk_row);
    write_rows<kHeadDim, 16 * kRowTiles / kSharers>(k_tile, at.first_key + at.part * 8 * kRowTiles, own.first,
                                                    2 * params.dk_row, own.count, at.lane);
  }
}
