// A consumer warpgroup's life: tile after tile until there are no more.
#pragma once
#include "params/forward.h"
#include "parts/wgmma/consumer.cuh"
#include "parts/wgmma/epilogue.cuh"
/*%#dynamic%*/
#include "parts/wgmma/tickets.cuh"
/*%/dynamic%*/
#include "parts/wgmma/tiles.cuh"
/*%^o_through_q%*/
#include "ptx/bulk_group.cuh"
/*%/o_through_q%*/
#include "ptx/tensor_map.cuh"

__device__ __forceinline__ void consume(Consumer& consumer, const TensorMap& map_o, const ForwardParams& p) {
  const int tiles = tile_count(p);
  /*%#ping_pong%*/
  // Warpgroup 0 goes first.
  if (consumer.warpgroup == kWarpgroups - 1) consumer.pass_turn();
  /*%/ping_pong%*/
  /*%#dynamic%*/
  int slot = 0, parity = 0;
  const auto next_index = [&] {
    // One lane reads the ticket and hands it on: if all lanes read it, one lane's arrival would not cover the
    // others' reads for compute-sanitizer.
    wait_for_ticket(consumer.shared, slot, parity);
    const int read = lane() == 0 ? read_ticket(consumer.shared, slot) : 0;
    const int index = __shfl_sync(0xffffffffu, read, 0);
    slot ^= 1;
    parity ^= slot ^ 1;
    return index;
  };
  /*%/dynamic%*/
  Tile tile;
  bool computed = false;  // a tile that is still to be finished
  /*%#dynamic%*/
  for (;;) {
    const int index = next_index();
    /*%/dynamic%*/
    /*%^dynamic%*/
  for (int index = first_tile();; index += tiles_dealt()) {
    /*%/dynamic%*/
    // The next tile's place is worked out beside the waits at the end of this one.
    const Tile next = tile_at(index, p);
    if (computed) finish(consumer, tile, map_o, p);
    if (index >= tiles) break;
    tile = next;
    consumer.compute(tile, p);
    computed = true;
  }
  /*%#ping_pong%*/
  // Warpgroup 0 takes the last arrival.
  if (consumer.warpgroup == 0) consumer.take_turn();
  /*%/ping_pong%*/
  /*%^o_through_q%*/
  if (threadIdx.x % 128 == 0) bulk_wait_read();  // shared memory is no longer the CTA's once it ends
  /*%/o_through_q%*/
}
