// FlashAttention-2's backward pass (Dao, arXiv 2307.08691, algorithm 2) on warp-level tensor cores. A CTA
// owns kTileN keys of one K/V head; the rows of Q and dO of all query heads that share it stream past. Half
// of the warps compute S^T = K Q^T, P^T and dV, the other half dP^T = V dO^T, dS^T and dK, each for its own
// keys, so that P^T and dS^T are fragments of the next product as they stand; and one half's exponentials run
// beside the other half's products.
#include "params/backward.h"
#include "parts/backward_rows.cuh"
/*%#async%*/
#include "parts/loader_async.cuh"
/*%/async%*/
/*%^async%*/
#include "parts/loader_staged.cuh"
/*%/async%*/
#include "parts/backward_tile_order.cuh"
#include "parts/row_output.cuh"
#include "parts/warp_products.cuh"
#include "ptx/math.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/shared.cuh"
#include "ptx/shared_pair.cuh"
#include "ptx/unpack.cuh"
/*%#dq_sum%*/
#include "ptx/reduction_pair.cuh"
/*%/dq_sum%*/
/*%#stmatrix%*/
#include "ptx/stmatrix.cuh"
/*%/stmatrix%*/

using TileQK = SharedTile<kHeadDim>;
using TileV = SharedTile<kHeadDimV>;
using TileDs = SharedTile<kTileM>;  // dS^T, a row for each key

constexpr int kKeyWarps = kWarps / 2;               // of either half
constexpr int kRowTiles = kTileN / kKeyWarps / 16;  // mma tiles of 16 keys of a warp
constexpr int kSteps = kTileM / 16;                 // of 16 query rows

// Element (row 0, column 0) of a head.
__device__ __forceinline__ const unsigned short* head_of(const void* tensor, long long batch,
                                                         long long head) {
  return static_cast<const unsigned short*>(tensor) + batch + head;
}

// A warp's first key in a gradient, and how many keys there are from it on.
struct OwnKeys {
  char* first;
  int count;
};

extern "C" __global__ void __launch_bounds__(kThreads /*%#min_ctas%*/, kMinCtas /*%/min_ctas%*/)
    FLASHJIT_ENTRY(const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned k_tile = shared_address(shared);
  const unsigned v_tile = k_tile + kTileBytesK;
  const unsigned stages = v_tile + kTileBytesV;  // kStages of them: Q, dO, and their rows' LSE and delta
  const unsigned p_tile = stages + kStages * kStageBytes;  // P^T in fragments, from one half to the other
  const unsigned ds_tile = p_tile + kTileBytesP;

  const KeyTile tile = key_tile_of_block(params);
  const int first_key = tile.n * kTileN;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int key_warp = warp % kKeyWarps;
  const int warp_key = key_warp * 16 * kRowTiles;  // of the warp's first key, in the tile

  const int tiles_q = (params.seqlen_q + kTileM - 1) / kTileM;
  const bool ragged = first_key + kTileN > params.seqlen_k;
  /*%#causal%*/
  // Row i sees keys up to i + diagonal. Rows of tiles before first_m see none of ours, those of tiles from
  // unmasked_m on all.
  const int diagonal = params.seqlen_k - params.seqlen_q;
  const int first_m = max(first_key - diagonal, 0) / kTileM;
  const int unmasked_m = (max(first_key + kTileN - 1 - diagonal, 0) + kTileM - 1) / kTileM;
  /*%/causal%*/
  /*%^causal%*/
  const int first_m = 0;
  /*%/causal%*/
  const int steps = params.group * max(tiles_q - first_m, 0);

  // Where the next copies come from.
  int copy_m = first_m;
  const int first_head = tile.head * params.group;
  const int first_pair = tile.batch * params.heads + first_head;  // of batch and head
  TileCopy<kTileM, kHeadDim> q_copy(
      head_of(params.q, tile.batch * params.q_batch, first_head * params.q_head), params.q_row);
  TileCopy<kTileM, kHeadDimV> dout_copy(
      head_of(params.dout, tile.batch * params.dout_batch, first_head * params.dout_head), params.dout_row);
  RowCopy row_copy(params, static_cast<long long>(first_pair) * params.padded_q);
  const auto start_copies = [&](unsigned stage) {
    q_copy.start<true>(stage, copy_m * kTileM, params.seqlen_q);
    dout_copy.start<true>(stage + kTileBytesQ, copy_m * kTileM, params.seqlen_q);
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
    q_copy.finish();
    dout_copy.finish();
    row_copy.finish();
    /*%/async%*/
    named_barrier_sync(0, kThreads);
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

  int m = first_m, pair = first_pair;  // of the current step
  /*%#dq_sum%*/
  // This warp's part of dQ: 16 kDqRowTiles rows and kDqColumns columns, from these on.
  const int dq_row = warp % kDqWarpsM * 16 * kDqRowTiles, dq_column = warp / kDqWarpsM * kDqColumns;
  const unsigned ds_lane = ds_tile + TileDs::offset(lane % 8 + lane / 16 * 8, dq_row / 8 + lane / 8 % 2);
  const unsigned k_columns = k_tile + TileQK::offset(lane % 16, dq_column / 8 + lane / 16);
  // dQ += dS K for the rows that begin at `first`, counted through all heads and their padding.
  const auto add_dq = [&](int buffer, int pair_of, int m_of) {
    if (kDqIdle && dq_column >= kHeadDim) return;
    float sum[kDqRowTiles][kDqColumns / 2] = {};
#pragma unroll
    for (int step = 0; step < kTileN / 16; ++step) {
      unsigned ds[kDqRowTiles][4];
#pragma unroll
      for (int r = 0; r < kDqRowTiles; ++r)
        ldmatrix_transposed(ds[r], TileDs::step(ds_lane + buffer * kTileBytesP, 16 * step, 2 * r));
      multiply_columns<TileQK, kDqColumns>(sum, ds, k_columns, 16 * step);
    }
    const long long first =
        static_cast<long long>(pair_of) * params.padded_q + m_of * kTileM + dq_row + lane / 4;
    float* const to = params.dq_sum + first * kHeadDim + dq_column + lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < kDqRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < kDqColumns / 2; i += 4) {
        if (kHeadDim % kDqColumns != 0 && dq_column + 2 * i >= kHeadDim) break;
        add_global(to + 16 * r * kHeadDim + 2 * i, sum[r][i], sum[r][i + 1]);
        add_global(to + (16 * r + 8) * kHeadDim + 2 * i, sum[r][i + 2], sum[r][i + 3]);
      }
    }
  };
  /*%/dq_sum%*/

  // A step begins when its rows have arrived and no warp is at work on the step before.
  const auto begin = [&](int i) {
    finish_copies();
    if (kStages == 2 && i + 1 < steps) start_copies(stages + (i + 1) % 2 * kStageBytes);
  };
  // With two stages each step adds the dQ of the one before, so that dS has been written by all long ago.
  const auto add_dq_before = [&](int i) {
    /*%#dq_sum%*/
    if (kStages == 2 && i > 0) {
      const bool first = m == first_m;
      add_dq((i - 1) % 2, first ? pair - 1 : pair, first ? tiles_q - 1 : m - 1);
    }
    /*%/dq_sum%*/
  };
  const auto end = [&](int i) {
    if (kStages == 1) {
      named_barrier_sync(0, kThreads);
      if (i + 1 < steps) start_copies(stages);
      /*%#dq_sum%*/
      add_dq(0, pair, m);
      /*%/dq_sum%*/
    }
    if (++m == tiles_q) {
      m = first_m;
      ++pair;
    }
  };
  const auto finish = [&] {
    if (kStages == 2) {
      named_barrier_sync(0, kThreads);
      add_dq_before(steps);
    }
    named_barrier_sync(0, kThreads);  // nobody reads K or V any more
  };
  const unsigned p_lane = p_tile + (key_warp * kSteps * kRowTiles * 32 + lane) * 16;
  // Where the warp's keys are in a gradient; worked out anew at the end, not held until then.
  const auto own_keys = [&](void* tensor, long long batch, long long head, long long row) {
    const KeyTile own = key_tile_of_block(params);
    const int first = own.n * kTileN + thread_index() / 32 % kKeyWarps * 16 * kRowTiles;
    return OwnKeys{static_cast<char*>(tensor) + 2 * (own.batch * batch + own.head * head + first * row),
                   params.seqlen_k - first};
  };

  if (warp < kKeyWarps) {
    float dv[kRowTiles][kHeadDimV / 2] = {};
    for (int i = 0; i < steps; ++i) {
      begin(i);
      const unsigned stage = stages + (kStages == 2 ? i % 2 * kStageBytes : 0);
      float scores[kRowTiles][kTileM / 2];
      multiply_rows<TileQK, kRowTiles, kTileM>(
          scores, k_tile + warp_key * TileQK::kPitch + lane_offset_rows_first<TileQK>(lane),
          stage + lane_offset_columns_first<TileQK>(lane));
      /*%#causal%*/
      const bool masked = ragged || m < unmasked_m;
      /*%/causal%*/
      /*%^causal%*/
      const bool masked = ragged;
      /*%/causal%*/
      if (masked) {
        const int key = first_key + warp_key + lane / 4;
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
          for (int j = 0; j < kTileM / 2; ++j) {
            const int of = key + 16 * r + j / 2 % 2 * 8;
            bool hidden = of >= params.seqlen_k;
            /*%#causal%*/
            hidden |= of > m * kTileM + j / 4 * 8 + lane % 4 * 2 + j % 2 + diagonal;
            /*%/causal%*/
            if (hidden) scores[r][j] = -kInfinity;
          }
        }
      }
      unsigned p[kSteps][kRowTiles][4];
      const unsigned lse_lane = stage + kTileBytesQ + kTileBytesDout + lane % 4 * 8;
#pragma unroll
      for (int j = 0; j < kTileM / 8; ++j) {
        const float2 lse = load_pair(lse_lane + 32 * j);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float* const score = &scores[r][4 * j + 2 * half];
            p[j / 2][r][j % 2 * 2 + half] = pack(exp2_fast(score[0] * params.scale_log2 - lse.x),
                                                 exp2_fast(score[1] * params.scale_log2 - lse.y));
          }
        }
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          const unsigned(&f)[4] = p[step][r];
          store_shared(p_lane + (step * kRowTiles + r) * 512, uint4{f[0], f[1], f[2], f[3]});
        }
      }
      named_barrier_arrive(1 + key_warp, 64);
      const unsigned dout_lane = stage + kTileBytesQ + lane_offset_rows_first<TileV>(lane);
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        multiply_columns<TileV, kHeadDimV>(dv, p[step], dout_lane, 16 * step);
      add_dq_before(i);
      end(i);
    }
    finish();
    const int thread = thread_index(), tile_key = thread / 32 % kKeyWarps * 16 * kRowTiles;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) stage_rows<kHeadDimV>(dv[r], v_tile, tile_key + 16 * r, thread % 32);
    __syncwarp();
    const OwnKeys own = own_keys(params.dv, params.dv_batch, params.dv_head, params.dv_row);
    write_rows<kHeadDimV, 16 * kRowTiles>(v_tile, tile_key, own.first, 2 * params.dv_row, own.count,
                                          thread % 32);
  } else {
    float dk[kRowTiles][kHeadDim / 2] = {};
    for (int i = 0; i < steps; ++i) {
      begin(i);
      const unsigned stage = stages + (kStages == 2 ? i % 2 * kStageBytes : 0);
      add_dq_before(i);
      float dp[kRowTiles][kTileM / 2];
      multiply_rows<TileV, kRowTiles, kTileM>(
          dp, v_tile + warp_key * TileV::kPitch + lane_offset_rows_first<TileV>(lane),
          stage + kTileBytesQ + lane_offset_columns_first<TileV>(lane));
      named_barrier_sync(1 + key_warp, 64);
      const unsigned delta_lane = stage + kTileBytesQ + kTileBytesDout + kTileM * 4 + lane % 4 * 8;
      const unsigned q_lane = stage + lane_offset_rows_first<TileQK>(lane);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const float2 delta[2] = {load_pair(delta_lane + 64 * step),
                                 load_pair(delta_lane + 64 * step + 32)};
        unsigned ds[kRowTiles][4];
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          const uint4 p4 = load_shared_16(p_lane + (step * kRowTiles + r) * 512);
          const unsigned p[4] = {p4.x, p4.y, p4.z, p4.w};
#pragma unroll
          for (int f = 0; f < 4; ++f) {
            const float* const of = &dp[r][8 * step + 2 * f];
            ds[r][f] =
                pack(low_half(p[f]) * (of[0] - delta[f / 2].x), high_half(p[f]) * (of[1] - delta[f / 2].y));
          }
          /*%#dq_sum%*/
          const unsigned to = ds_tile + (kStages == 2 ? i % 2 * kTileBytesP : 0);
          /*%#stmatrix%*/
          stmatrix(to + TileDs::offset(warp_key + 16 * r + lane % 16, 2 * step + lane / 16), ds[r][0],
                   ds[r][1], ds[r][2], ds[r][3]);
          /*%/stmatrix%*/
          /*%^stmatrix%*/
#pragma unroll
          for (int f = 0; f < 4; ++f) {
            store_shared(to + TileDs::offset(warp_key + 16 * r + f % 2 * 8 + lane / 4, 2 * step + f / 2) +
                             lane % 4 * 4,
                         ds[r][f]);
          }
          /*%/stmatrix%*/
          /*%/dq_sum%*/
        }
        multiply_columns<TileQK, kHeadDim>(dk, ds, q_lane, 16 * step);
      }
      end(i);
    }
    finish();
    const int thread = thread_index(), tile_key = thread / 32 % kKeyWarps * 16 * kRowTiles;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i) dk[r][i] *= params.scale;
      stage_rows<kHeadDim>(dk[r], k_tile, tile_key + 16 * r, thread % 32);
    }
    __syncwarp();
    const OwnKeys own = own_keys(params.dk, params.dk_batch, params.dk_head, params.dk_row);
    write_rows<kHeadDim, 16 * kRowTiles>(k_tile, tile_key, own.first, 2 * params.dk_row, own.count,
                                         thread % 32);
  }
}
