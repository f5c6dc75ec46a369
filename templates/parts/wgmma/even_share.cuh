// A CTA's even share: the rest of one tile, whole tiles, the beginning of another; then tiles that nobody
// shares. These fill whole waves, and are dealt like cards: what runs together finds its K and V in L2, as
// long as nobody is ahead by a part of a tile.
#pragma once
#include "params/forward.h"
#include "parts/wgmma/share_blocks.cuh"
#include "parts/wgmma/share_bounds.cuh"
#include "parts/wgmma/tiles.cuh"

struct EvenShare {
  Place next, end;  // what is left
  int dealt;        // the tile that comes next when nothing is

  __device__ __forceinline__ explicit EvenShare(const ForwardParams& p) {
    const ShareBounds bounds(p);
    next = bounds.begin(first_tile());
    end = bounds.begin(first_tile() + 1);
    dealt = p.shared_tiles + first_tile();
  }

  // What it has of its next tile; of length 0 where there is none.
  __device__ __forceinline__ Tile take(const ForwardParams& p) {
    const bool ends_here = next.tile == end.tile;
    const bool shared = ends_here ? next.block < end.block : next.tile < end.tile;
    Tile tile = tile_at(shared ? next.tile : dealt, p);
    const int blocks = blocks_of_tile(tile, p);
    tile.index = next.tile;
    tile.first = shared ? next.block : 0;
    tile.length = shared && ends_here               ? end.block - next.block
                  : shared || dealt < tile_count(p) ? blocks - tile.first
                                                    : 0;
    tile.whole = tile.length == blocks;
    tile.blocks = blocks_of_share((visible_keys(tile.row + kTileM, p) + kTileN - 1) / kTileN, tile);
    if (shared) {
      next = {next.tile + 1, 0};
    } else {
      dealt += tiles_dealt();
    }
    return tile;
  }
};
