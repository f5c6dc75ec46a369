// forward_mma.cu for a CTA that has the multiprocessor to itself. There nothing would be computed while a
// CTA's first copies are under way. So CTAs compute one tile after another, and the next tile's Q and K
// arrive while a tile is finished. There is one slot of K and V, and every tile has the same number of steps.
#include "params/forward.h"
#include "parts/mma/epilogue.cuh"
#include "parts/mma/head_of.cuh"
#include "parts/mma/loader_async.cuh"
#include "parts/mma/mask.cuh"
#include "parts/mma/products.cuh"
#include "parts/mma/row_tiles.cuh"
#include "parts/mma/tile_order.cuh"
#include "ptx/block_index.cuh"
#include "ptx/grid_size.cuh"
#include "ptx/shared_address.cuh"

extern "C" __global__ void __launch_bounds__(kThreads/*%#min_ctas%*/, kMinCtas/*%/min_ctas%*/)
    FLASHJIT_ENTRY(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned k_tile = shared_address(shared), v_tile = k_tile + kTileBytesK, q_tile = k_tile + kOffsetQ;

  // Where this lane starts to read.
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned q_lane =
      q_tile + warp * kRowsPerWarp * TileQK::kPitch + lane_offset_rows_first<TileQK>(lane);
  const unsigned k_lane = k_tile + lane_offset_columns_first<TileQK>(lane);
  const unsigned v_lane = v_tile + lane_offset_rows_first<TileV>(lane);

  // The tile of keys that is read first. Where there are no keys, one tile is read all the same and hidden
  // from all rows, so that the loops below need no special case.
  const int last = max((params.seqlen_k + kTileN - 1) / kTileN, 1) - 1;

  TileCopy<kTileN, kHeadDim> k_copy(nullptr, params.k_row);
  TileCopy<kTileN, kHeadDimV> v_copy(nullptr, params.v_row);
  // Starts the copies of a tile's Q and first K; k_copy and v_copy are its head's from now on.
  const auto ask = [&](int tile) {
    const TileIndex index = tile_at(params, tile);
    const int head_kv = divide(index.head, params.by_group);
    const TileCopy<kTileM, kHeadDim> q_copy(
        head_of(params.q, index.batch * params.q_batch, index.head * params.q_head), params.q_row);
    q_copy.start<true>(q_tile, index.m * kTileM, params.seqlen_q);
    k_copy.move_to(head_of(params.k, index.batch * params.k_batch, head_kv * params.k_head));
    v_copy.move_to(head_of(params.v, index.batch * params.v_batch, head_kv * params.v_head));
    k_copy.start<true>(k_tile, last * kTileN, params.seqlen_k);
  };

  int tile = block_index();  // numbered among all tiles
  ask(tile);
  cp_async_commit();
  for (;;) {
    SoftmaxRows rows[kRowTiles];
    float output[kRowTiles][kHeadDimV / 2] = {};  // this thread's part of the warp's rows of O

    int n = last;
    // A step begins when its K has arrived (in the first step, Q too) and no warp reads V or stages O any
    // more.
    const auto begin = [&] {
      cp_async_wait<0>();
      __syncthreads();
    };
    const auto multiply = [&](float(&scores)[kRowTiles][kBlockN / 2]) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < kBlockN / 2; ++i) scores[r][i] = 0;
      }
#pragma unroll
      for (int i = 0; i < kStepsQK; ++i) {
        unsigned q[kRowTiles][4];
        load_q(q, q_lane, i);
        multiply_qk(scores, q, k_lane, i);
      }
    };
    // A step's second half begins when V has arrived and no warp reads K any more, nor Q in the tile's last
    // step.
    const auto turn_to_v = [&] {
      cp_async_wait<0>();
      __syncthreads();
      if (n > 0) {
        k_copy.start<false>(k_tile, (n - 1) * kTileN, params.seqlen_k);
      } else {
        const int next = tile + grid_size();
        if (next < params.tiles_m * params.heads * params.batch) ask(next);
      }
      cp_async_commit();
    };
    const auto accumulate = [&](const float(&scores)[kRowTiles][kBlockN / 2]) {
      raise(rows, output, scores, params.scale_log2);
      add_pv(rows, output, scores, v_lane, params.scale_log2);
    };

    if (params.seqlen_k < (last + 1) * kTileN) {
      begin();
      v_copy.start<true>(v_tile, n * kTileN, params.seqlen_k);
      cp_async_commit();
      float scores[kRowTiles][kBlockN / 2];
      multiply(scores);
      turn_to_v();
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) mask_keys<0>(scores[r], params.seqlen_k - n * kTileN);
      accumulate(scores);
      --n;
    }
#pragma unroll kUnroll
    for (; n >= 0; --n) {
      begin();
      v_copy.start<false>(v_tile, n * kTileN, params.seqlen_k);
      cp_async_commit();
      float scores[kRowTiles][kBlockN / 2];
      multiply(scores);
      turn_to_v();
      accumulate(scores);
    }

    // O takes the place of V once all warps have read V.
    __syncthreads();
    write_tile(params, tile_at(params, tile), rows, output, v_tile);
    tile += grid_size();
    if (tile >= params.tiles_m * params.heads * params.batch) break;
  }
}
