// How CTAs share out the tiles of a grid: in rounds, a tile each.
#pragma once
#include "ptx/grid_size.cuh"
#include "ptx/special.cuh"

// The tile that this CTA works on in its n-th round; -1 after the last one.
/*%#causal%*/
// The first tiles are the longest. Rounds run forth and back, so that a CTA that got a longer tile
// than others gets a shorter one next.
/*%/causal%*/
__device__ __forceinline__ int tile_of_round(int round, int tiles) {
  int place = block_index();
  /*%#causal%*/
  if (round % 2 != 0) place = grid_size() - 1 - place;
  /*%/causal%*/
  const int index = round * grid_size() + place;
  return index < tiles ? index : -1;
}

// Keeps what is computed from a parameter out of registers from tile to tile: the producer has few.
__device__ __forceinline__ int anew(int parameter) {
  asm volatile("" : "+r"(parameter));
  return parameter;
}
