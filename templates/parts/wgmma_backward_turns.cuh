// The additions to each tile of dQ in a fixed order, so that its sums are the same from run to run. A thread
// beside the consumers waits for its tile's turn at each step, lets the consumers add, and passes the turn
// on. Turns follow the order in which tiles are taken: whoever is waited for is at work already.
#pragma once
#include "params/backward.h"
#include "parts/wgmma_backward_layout.cuh"
#include "parts/wgmma_backward_tiles.cuh"
#include "ptx/acquire_release.cuh"
#include "ptx/mbarrier.cuh"

// How many tiles add to this step's dQ before the tile that begins with `key`.
__device__ __forceinline__ int turn_of(int key, int m, const BackwardParams& p) {
  int turn = key / kTileN;
  /*%#causal%*/
  // Tiles of keys that the step's last query sees, from the last to the first.
  const int end = (m + 1) * kTileM + p.seqlen_k - p.seqlen_q;
  turn = min(p.tiles, (end + kTileN - 1) / kTileN) - 1 - turn;
  /*%/causal%*/
  return turn;
}

__device__ __forceinline__ void keep_turns(const BackwardParams& p, unsigned shared) {
  int step = 0;  // of the CTA, over all its tiles
#pragma unroll 1
  for (int round = 0;; ++round) {
    const int index = read_ticket(shared, round);
    if (index < 0) return;
    const KeyTile tile = tile_at(index, p);
    int head = tile.head_kv * p.group;
    int m = tile.first_step;
#pragma unroll 1
    for (int left = tile.steps(p); left > 0; --left, ++step) {
      int* turns = p.turns + (tile.batch * p.heads + head) * (p.padded_q / kTileM) + m;
      const int turn = turn_of(tile.key, m, p);
      while (load_acquire(turns) != turn) continue;
      mbarrier_arrive(shared + kMayAdd + 8 * (step & 1));
      mbarrier_wait(shared + kAdded + 8 * (step & 1), step >> 1 & 1);
      add_release(turns, 1);
      if (++m == tile.end_step) {
        m = tile.first_step;
        ++head;
      }
    }
  }
}
