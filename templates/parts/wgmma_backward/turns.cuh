// Turns at adding to each tile of dQ: the first to come stores, so that nobody need clear the sums, and the
// last one converts, so that no kernel need come after. Turns are in a fixed order, which makes the sums the
// same from run to run. A thread beside the consumers waits for its CTA's turn at each step, tells the
// consumers what to do, and passes the turn on.
#pragma once
#include "params/backward.h"
#include "parts/wgmma_backward/layout.cuh"
#include "parts/wgmma_backward/tiles.cuh"
#include "ptx/acquire_release.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"

// A tile's turn among those that add to step m's queries: the order in which they come there. Unless all tiles
// are at work at once, it is also the order in which they are taken, so that whoever is waited for is at work
// already.
__device__ __forceinline__ int turn_of(const KeyTile& tile, int m, int adders, const BackwardParams& p) {
  const int n = tile.key / kTileN;
  /*%^rotated%*/
  return adders - 1 - n;
  /*%/rotated%*/
  /*%#rotated%*/
  if (!all_at_once(p)) return n;
  const int first = ((m + 1) * adders - 1) / tile.end_step;  // the last one that starts here or before
  return first >= n ? first - n : first - n + adders;
  /*%/rotated%*/
}

// Until as many as come before this turn are done.
__device__ __forceinline__ void wait_for_turn(const int* done, int turn) {
  if (turn == 0) return;
  while (load_acquire(done) < turn) continue;
}

// Tiles of keys that some of a step's queries see.
__device__ __forceinline__ int adders_of(int m, const BackwardParams& p) {
  int adders = anew(p.tiles);
  /*%#causal%*/
  adders = min(adders, ((m + 1) * kTileM + anew(p.seqlen_k) - anew(p.seqlen_q) + kTileN - 1) / kTileN);
  /*%/causal%*/
  return adders;
}

__device__ __forceinline__ void keep_turns(const BackwardParams& p, unsigned shared) {
  int step = 0;  // of the CTA, over all its tiles
#pragma unroll 1
  for (int round = 0;; ++round) {
    const int index = read_ticket(shared, round);
    if (index < 0) return;
    const KeyTile tile = tile_at(index, p);
    int head = tile.head_kv * p.group;
    int m = tile.starts_at();
    int before = -1;  // the counter of the step before
#pragma unroll 1
    for (int left = tile.steps(p); left > 0; --left, ++step) {
      const int done = (tile.batch * p.heads + head) * (anew(p.padded_q) / kTileM) + m;
      const int adders = adders_of(m, p);
      const int turn = turn_of(tile, m, adders, p);
      if (before >= 0) add_release(p.counters + before, 1);
      before = done;
      wait_for_turn(p.counters + done, turn);
      const unsigned long long dq =
          reinterpret_cast<unsigned long long>(p.dq) +
          2 * (tile.batch * p.dq_batch + head * p.dq_head + anew(m) * kTileM * p.dq_row);
      const unsigned how = (turn == 0 ? kStores : 0) | (turn + 1 == adders ? kConverts : 0);
      store_shared(shared + kOrders + 16 * (step & 1),
                   uint4{how, static_cast<unsigned>(anew(p.seqlen_q) - m * kTileM), static_cast<unsigned>(dq),
                         static_cast<unsigned>(dq >> 32)});
      mbarrier_arrive(shared + kMayAdd + 8 * (step & 1));
      mbarrier_wait(shared + kAdded + 8 * (step & 1), step >> 1 & 1);
      if (tile.advance(m)) ++head;
    }
    if (before >= 0) add_release(p.counters + before, 1);
  }
}
