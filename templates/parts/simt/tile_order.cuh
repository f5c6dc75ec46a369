// Which tile of which head a CTA computes.
#pragma once
#include "parts/divide.cuh"

struct TileIndex {
  int place;  // of the tile among its head's
  int pair;   // number of the (batch, head) pair
  int batch, head;
};

// Causal: the first tile of each (batch, head) pair, then the second, so that tiles with most work go first.
// Otherwise all tiles of a pair, then the next pair's: neighbours share what they read in L2.
__device__ __forceinline__ TileIndex tile_of_block(int tiles, const Divisor& by_tiles, int pairs,
                                                   const Divisor& by_pairs, int heads,
                                                   const Divisor& by_heads) {
  const int index = blockIdx.x;
  const int row = divide(index, kCausal ? by_pairs : by_tiles);
  const int rest = index - row * (kCausal ? pairs : tiles);
  TileIndex tile;
  tile.place = kCausal ? row : rest;
  tile.pair = kCausal ? rest : row;
  tile.batch = divide(tile.pair, by_heads);
  tile.head = tile.pair - tile.batch * heads;
  return tile;
}
