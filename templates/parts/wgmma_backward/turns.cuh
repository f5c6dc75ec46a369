// A tile's turn among those that add to a step's dQ: the order in which they come there, beginning with who
// starts there. Unless all tiles are at work at once, it is also the order in which they are taken, so that
// whoever is waited for is at work already.
#pragma once
#include "params/backward.h"
#include "parts/wgmma_backward/tiles.cuh"

struct Turn {
  int number;  // from 0
  /*%^rotated%*/
  // Tile n is the n-th from the last of those that see some of the step's queries.
  __device__ __forceinline__ Turn(const KeyTile& tile, const BackwardParams& p) {
    move_to(tile.starts_at(), false, tile, p);
  }
  __device__ __forceinline__ void move_to(int m, bool next_head, const KeyTile& tile,
                                          const BackwardParams& p) {
    int adders = anew(p.tiles);
    /*%#causal%*/
    adders = min(adders, ((m + 1) * kTileM + anew(p.seqlen_k) - anew(p.seqlen_q) + kTileN - 1) / kTileN);
    /*%/causal%*/
    number = adders - 1 - tile.key / kTileN;
  }
  /*%/rotated%*/
  /*%#rotated%*/
  // Tile f, counted on from tile n, is the last that starts at step m or before: f = ((m + 1) tiles - 1) /
  // steps. The division's rest tells when f goes up.
  int rest;
  __device__ __forceinline__ Turn(const KeyTile& tile, const BackwardParams& p) {
    const int n = tile.key / kTileN, above = (tile.start_step + 1) * anew(p.tiles) - 1;
    const int last = above / tile.end_step;
    number = all_at_once(p) ? last - n : n;
    rest = above - last * tile.end_step;
  }
  __device__ __forceinline__ void move_to(int m, bool next_head, const KeyTile& tile,
                                          const BackwardParams& p) {
    if (!all_at_once(p)) return;
    rest += anew(p.tiles);
    for (; rest >= tile.end_step; rest -= tile.end_step) ++number;
    if (next_head) number -= anew(p.tiles);
  }
  /*%/rotated%*/
};
