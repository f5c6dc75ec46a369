// A consumer warpgroup's life: this CTA's share of one tile's keys, whose results are merged with the
// others'.
#pragma once
#include "params/forward.h"
#include "parts/wgmma/consumer.cuh"
#include "parts/wgmma/merge.cuh"
#include "parts/wgmma/tiles.cuh"

__device__ __forceinline__ void consume(Consumer& consumer, const ForwardParams& p) {
  /*%#ping_pong%*/
  if (consumer.warpgroup == kWarpgroups - 1) consumer.pass_turn();  // warpgroup 0 goes first
  /*%/ping_pong%*/
  const Tile tile = tile_at(only_tile(p), p);
  consumer.compute(tile, p);
  /*%#ping_pong%*/
  if (consumer.warpgroup == 0) consumer.take_turn();  // takes the last arrival
  /*%/ping_pong%*/
  merge(consumer, tile, p);
}
