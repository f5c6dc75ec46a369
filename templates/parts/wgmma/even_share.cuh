// A CTA's even share: the rest of one tile, whole tiles, and the beginning of another.
/*%^causal%*/
// Then come tiles that nobody shares. These fill whole waves, and are dealt like cards: CTAs that run side by
// side find their K and V in L2, as long as none is ahead by a part of a tile.
/*%/causal%*/
/*%#causal%*/
// Where a head has one tile only, then come tiles that nobody shares. These fill whole waves, and are dealt
// like cards.
/*%/causal%*/
#pragma once
#include "params/forward.h"
#include "parts/wgmma/share_bounds.cuh"
#include "parts/wgmma/tiles.cuh"

struct EvenShare {
  Place next, end{0, 0};  // of the share; after its end, `next` is a tile that is dealt

  __device__ __forceinline__ explicit EvenShare(const ForwardParams& p) {
#pragma unroll 1
    for (int share = first_tile(); share < first_tile() + 2; ++share) {
      next = end;
      end = begin_of_share(share, p);
    }
    next.tile = is_shared() ? next.tile : first_dealt(p);
  }

  __device__ __forceinline__ bool is_shared() const {
    return (next.tile < end.tile) | ((next.tile == end.tile) & (next.block < end.block));
  }
  static __device__ __forceinline__ int first_dealt(const ForwardParams& p) {
    return p.shared_tiles + first_tile();
  }

  // What this CTA has of its next tile; of length 0 where there is none. Without branches: if all lanes of a
  // warp begin with the same values, ptxas sees that they stay the same.
  __device__ __forceinline__ Tile take(const ForwardParams& p) {
    const bool shared = is_shared(), ends_here = next.tile == end.tile;
    Tile tile = tile_at(next.tile, p);
    const int blocks = blocks_of_tile(tile, p);
    tile.index = next.tile;
    tile.first = next.block;
    tile.length = shared                      ? (ends_here ? end.block : blocks) - next.block
                  : next.tile < tile_count(p) ? blocks
                                              : 0;
    tile.whole = tile.length == blocks;
    tile.blocks = blocks_of_share((keys_before(tile.row + kTileM, p) + kTileN - 1) / kTileN, tile);
    next = {next.tile + (shared ? 1 : tiles_dealt()), 0};
    next.tile = (shared & !is_shared()) ? first_dealt(p) : next.tile;
    return tile;
  }
};
