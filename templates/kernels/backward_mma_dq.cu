// dQ on warp-level tensor cores: the second kernel of a backward pass that adds nothing up in memory. A CTA
// owns kTileM query rows of one head; K and V stream through shared memory. Each warp owns its rows from S to
// dQ, so that its dS already is a fragment of the last product (split-Q, as in the forward pass).
#include "params/backward.h"
/*%#async%*/
#include "parts/mma/loader_async.cuh"
/*%/async%*/
/*%^async%*/
#include "parts/mma/loader_staged.cuh"
/*%/async%*/
#include "parts/mma/backward_query_tile.cuh"
#include "parts/mma/head_of.cuh"
#include "parts/mma/multiply_columns.cuh"
#include "parts/mma/row_output.cuh"
#include "parts/mma/visible_keys.cuh"
#include "parts/mma/warp_products.cuh"
#include "ptx/math.cuh"
#include "ptx/shared_address.cuh"
#include "ptx/unpack.cuh"

using TileQK = SharedTile<kHeadDim>;
using TileV = SharedTile<kHeadDimV>;

constexpr int kRowsPerWarp = 16 * kRowTiles;

extern "C" __global__ void __launch_bounds__(kThreads/*%#min_ctas%*/, kMinCtas/*%/min_ctas%*/)
    FLASHJIT_ENTRY(const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned q_tile = shared_address(shared);
  const unsigned dout_tile = q_tile + kTileBytesQ;
  const unsigned slots = dout_tile + kTileBytesDout;  // kStages of them, each a tile of K and a tile of V

  const QueryTile tile = query_tile_of_block(params);
  const int first_row = tile.m * kTileM;
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x / 32 * kRowsPerWarp;

  const VisibleKeys visible(params, first_row);

  float dq[kRowTiles][kHeadDim / 2] = {};
  if (visible.masked_end > 0) {
    const int head_kv = tile.head / params.group;
    TileCopy<kTileN, kHeadDim> k_copy(head_of(params.k, tile.batch * params.k_batch, head_kv * params.k_head),
                                      params.k_row);
    TileCopy<kTileN, kHeadDimV> v_copy(
        head_of(params.v, tile.batch * params.v_batch, head_kv * params.v_head), params.v_row);
    const auto start_copies = [&](int n, int stage) {
      const unsigned slot = slots + stage * kSlotBytes;
      k_copy.start<true>(slot, n * kTileN, params.seqlen_k);
      /*%#copies_in_turn%*/
      k_copy.finish();  // so that registers hold only one tile at a time
      /*%/copies_in_turn%*/
      v_copy.start<true>(slot + kTileBytesK, n * kTileN, params.seqlen_k);
      /*%#copies_in_turn%*/
      v_copy.finish();
      /*%/copies_in_turn%*/
      /*%#async%*/
      cp_async_commit();
      /*%/async%*/
    };
    /*%^copies_in_turn%*/
    {
      TileCopy<kTileM, kHeadDim> q_copy(
          head_of(params.q, tile.batch * params.q_batch, tile.head * params.q_head), params.q_row);
      q_copy.start<true>(q_tile, first_row, params.seqlen_q);
      /*%^async%*/
      q_copy.finish();
      /*%/async%*/
      TileCopy<kTileM, kHeadDimV> dout_copy(
          head_of(params.dout, tile.batch * params.dout_batch, tile.head * params.dout_head),
          params.dout_row);
      dout_copy.start<true>(dout_tile, first_row, params.seqlen_q);
      /*%^async%*/
      dout_copy.finish();
      /*%/async%*/
    }
    /*%/copies_in_turn%*/
    /*%#copies_in_turn%*/
    // 16 rows at a time: all rows at once would not fit into registers beside dQ's zeros.
#pragma unroll 1
    for (int row = 0; row < kTileM; row += 16) {
      TileCopy<16, kHeadDim> q_copy(head_of(params.q, tile.batch * params.q_batch, tile.head * params.q_head),
                                    params.q_row);
      q_copy.start<true>(q_tile + row * TileQK::kPitch, first_row + row, params.seqlen_q);
      q_copy.finish();
      TileCopy<16, kHeadDimV> dout_copy(
          head_of(params.dout, tile.batch * params.dout_batch, tile.head * params.dout_head),
          params.dout_row);
      dout_copy.start<true>(dout_tile + row * TileV::kPitch, first_row + row, params.seqlen_q);
      dout_copy.finish();
    }
    /*%/copies_in_turn%*/
    start_copies(0, 0);

    // LSE and delta of this thread's rows. Rows past the end lie in the padding, whose LSE makes their P 0.
    float lse[kRowTiles][2], delta[kRowTiles][2];
    const long long padded_row =
        (static_cast<long long>(tile.batch) * params.heads + tile.head) * params.padded_q + first_row +
        warp_row;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        lse[r][half] = params.lse_log2[padded_row + 16 * r + 8 * half + lane / 4];
        delta[r][half] = params.delta[padded_row + 16 * r + 8 * half + lane / 4];
      }
    }

    const unsigned q_lane = q_tile + warp_row * TileQK::kPitch + lane_offset_rows_first<TileQK>(lane);
    const unsigned dout_lane = dout_tile + warp_row * TileV::kPitch + lane_offset_rows_first<TileV>(lane);
    for (int n = 0; n < visible.masked_end; ++n) {
      const int stage = kStages == 2 ? n % 2 : 0;
      const unsigned slot = slots + stage * kSlotBytes;
      /*%#async%*/
      cp_async_wait<0>();
      /*%/async%*/
      /*%^async%*/
      /*%^copies_in_turn%*/
      k_copy.finish();
      v_copy.finish();
      /*%/copies_in_turn%*/
      /*%/async%*/
      __syncthreads();
      if (kStages == 2 && n + 1 < visible.masked_end) start_copies(n + 1, 1 - stage);

      float scores[kRowTiles][kTileN / 2];
      multiply_rows<TileQK, kRowTiles, kTileN>(scores, q_lane,
                                               slot + lane_offset_columns_first<TileQK>(lane));
      if (n >= visible.unmasked_end) {
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) visible.mask(scores[r], warp_row + 16 * r, n * kTileN, params);
      }
      // P, rounded as the pass over the keys rounds it.
      unsigned p[kRowTiles][kTileN / 4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < kTileN / 4; ++i) {
          p[r][i] = pack(exp2_fast(scores[r][2 * i] * params.scale_log2 - lse[r][i % 2]),
                         exp2_fast(scores[r][2 * i + 1] * params.scale_log2 - lse[r][i % 2]));
        }
      }
      float dp[kRowTiles][kTileN / 2];
      multiply_rows<TileV, kRowTiles, kTileN>(dp, dout_lane,
                                              slot + kTileBytesK + lane_offset_columns_first<TileV>(lane));
      const unsigned k_lane = slot + lane_offset_rows_first<TileQK>(lane);
#pragma unroll
      for (int step = 0; step < kTileN / 16; ++step) {
        unsigned ds[kRowTiles][4];
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
          for (int f = 0; f < 4; ++f) {
            const float* const of = &dp[r][8 * step + 2 * f];
            const unsigned pair = p[r][4 * step + f];
            ds[r][f] =
                pack(low_half(pair) * (of[0] - delta[r][f % 2]), high_half(pair) * (of[1] - delta[r][f % 2]));
          }
        }
        multiply_columns<TileQK, kHeadDim>(dq, ds, k_lane, 16 * step);
      }
      if (kStages == 1) {
        __syncthreads();
        if (n + 1 < visible.masked_end) start_copies(n + 1, 0);
      }
    }
  }

  // dQ takes the place of the warp's own rows of Q in shared memory.
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) dq[r][i] *= params.scale;
    stage_rows<kHeadDim>(dq[r], q_tile, warp_row + 16 * r, 0, lane);
  }
  __syncwarp();
  char* const to =
      static_cast<char*>(params.dq) + 2 * (tile.batch * params.dq_batch + tile.head * params.dq_head +
                                           (first_row + warp_row) * params.dq_row);
  write_rows<kHeadDim, kRowsPerWarp>(q_tile, warp_row, to, 2 * params.dq_row,
                                     params.seqlen_q - first_row - warp_row, lane);
}
