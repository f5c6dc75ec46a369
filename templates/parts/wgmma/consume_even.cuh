// A consumer warpgroup's life: this CTA's tiles, one after another. Where others have a share of a tile, too,
// their partial results are merged.
#pragma once
#include "params/forward.h"
#include "parts/wgmma/consumer.cuh"
#include "parts/wgmma/epilogue.cuh"
#include "parts/wgmma/even_share.cuh"
#include "parts/wgmma/pieces.cuh"
#include "parts/wgmma/sharers.cuh"
#include "parts/wgmma/tiles.cuh"
#include "ptx/bulk_group.cuh"
#include "ptx/tensor_map.cuh"

// Ends this CTA's share of a tile. Returns whether this warpgroup now has the results of the whole tile's
// keys, and has to store them.
__device__ __forceinline__ bool finish_share(Consumer& consumer, const Tile& tile, const ForwardParams& p) {
  // The first lane's row: a warp's lanes agree, which ptxas has to be told here, too.
  const int row = __shfl_sync(0xffffffffu, tile.row + kRowStep * consumer.warpgroup, 0);
  if (row >= row_count(p)) return false;
  return merge_sharers(Sharers(tile, p), consumer, tile, consumer.softmax.rows, p);
}

// This CTA's share. All lanes of a warp have the same, which ptxas only knows if one lane hands it to the
// others. Otherwise descriptors would come from ordinary registers at each product.
__device__ __forceinline__ EvenShare agreed_share(const ForwardParams& p) {
  EvenShare share(p);
  share.next = {__shfl_sync(0xffffffffu, share.next.tile, 0), __shfl_sync(0xffffffffu, share.next.block, 0)};
  share.end = {__shfl_sync(0xffffffffu, share.end.tile, 0), __shfl_sync(0xffffffffu, share.end.block, 0)};
  return share;
}

__device__ __forceinline__ void consume(Consumer& consumer, const TensorMap& map_o, const ForwardParams& p) {
  /*%#ping_pong%*/
  // Warpgroup 0 goes first.
  if (consumer.warpgroup == kWarpgroups - 1) consumer.pass_turn();
  /*%/ping_pong%*/
  EvenShare share = agreed_share(p);
  Tile tile;
  bool computed = false;  // a tile that is still to be finished
  for (;;) {
    const Tile next = share.take(p);
    if (computed && (tile.whole || finish_share(consumer, tile, p))) finish(consumer, tile, map_o, p);
    if (next.length == 0) break;
    tile = next;
    consumer.compute(tile, p);
    computed = true;
  }
  /*%#ping_pong%*/
  // Warpgroup 0 takes the last arrival.
  if (consumer.warpgroup == 0) consumer.take_turn();
  /*%/ping_pong%*/
  if (threadIdx.x % 128 == 0) bulk_wait_read();  // shared memory is no longer the CTA's once it ends
}
