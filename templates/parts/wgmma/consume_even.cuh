// A consumer warpgroup's life: this CTA's tiles. What it knows of one that others have a share of, too,
// becomes one with what they know.
#pragma once
#include "params/forward.h"
#include "parts/wgmma/consumer.cuh"
#include "parts/wgmma/epilogue.cuh"
#include "parts/wgmma/even_share.cuh"
/*%#lse%*/
#include "parts/wgmma/lse.cuh"
/*%/lse%*/
#include "parts/wgmma/pieces.cuh"
#include "parts/wgmma/rows.cuh"
#include "parts/wgmma/softmax.cuh"
#include "parts/wgmma/store_columns.cuh"
#include "parts/wgmma/tiles.cuh"
#include "ptx/shuffle.cuh"
#include "ptx/tma.cuh"

// The end of this CTA's share of a tile.
__device__ __forceinline__ void finish_share(Consumer& consumer, const Tile& tile, const ForwardParams& p) {
  const RowsOfThread mine(tile.row + kRowStep * consumer.warpgroup, p);
  // The warp has no rows. (By its first lane: ptxas keeps uniform registers where it knows that all agree.)
  if (__shfl_sync(0xffffffffu, mine.row, 0) >= row_count(p)) return;
  SoftmaxState rows = consumer.softmax.rows;
  rows.sum[0] = quad_sum(rows.sum[0]);
  rows.sum[1] = quad_sum(rows.sum[1]);
  if (!merge_sharers(Sharers(tile, p), consumer, tile, rows, consumer.o, p)) return;
  /*%#lse%*/
  store_lse(tile, mine, rows, rows.sum, p);
  /*%/lse%*/
  store_columns(consumer.o, rows, tile, mine, p);
}

// This CTA's share. All lanes of a warp have the same, which ptxas knows of what one lane tells the others:
// where it does not, descriptors come from ordinary registers at each product.
__device__ __forceinline__ EvenShare agreed_share(const ForwardParams& p) {
  EvenShare share(p);
  share.next = {__shfl_sync(0xffffffffu, share.next.tile, 0), __shfl_sync(0xffffffffu, share.next.block, 0)};
  share.end = {__shfl_sync(0xffffffffu, share.end.tile, 0), __shfl_sync(0xffffffffu, share.end.block, 0)};
  return share;
}

__device__ __forceinline__ void consume(Consumer& consumer, const TensorMap& map_o, const ForwardParams& p) {
  /*%#ping_pong%*/
  if (consumer.warpgroup == kWarpgroups - 1) consumer.pass_turn();  // warpgroup 0 goes first
  /*%/ping_pong%*/
  EvenShare share = agreed_share(p);
  Tile tile = share.take(p);
  while (tile.length > 0) {
    consumer.compute(tile, p);
    const Tile next = share.take(p);
    if (tile.whole) {
      finish(consumer, tile, map_o, p);
    } else {
      finish_share(consumer, tile, p);
    }
    tile = next;
  }
  /*%#ping_pong%*/
  if (consumer.warpgroup == 0) consumer.take_turn();  // takes the last arrival
  /*%/ping_pong%*/
  if (threadIdx.x % 128 == 0) bulk_wait();
}
