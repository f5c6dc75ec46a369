// Turns at adding to each tile of dQ: the first to come stores, so that nobody need clear the sums, and the
// last one converts, so that no kernel need come after. A thread beside the consumers waits for its CTA's
// turn at each step, tells the consumers what to do, and passes the turn on.
#pragma once
#include "params/backward.h"
#include "parts/wgmma_backward_layout.cuh"
#include "parts/wgmma_backward_tiles.cuh"
#include "ptx/acquire_release.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"

/*%#ordered%*/
constexpr int kCounters = 1;  // of each tile of dQ: who is done
/*%/ordered%*/
/*%#claimed%*/
constexpr int kCounters = 2;  // of each tile of dQ: who is done, and who has come
/*%/claimed%*/

struct Turn {
  int number, of;  // this tile's among all that add to a step's dQ
};

/*%#ordered%*/
// The same from run to run, and so are the sums. Turns follow the order in which tiles are taken: whoever is
// waited for is at work already.
__device__ __forceinline__ Turn take_turn(int* counters, int key, int adders) {
  /*%#causal%*/
  const int number = adders - 1 - key / kTileN;
  /*%/causal%*/
  /*%^causal%*/
  const int number = key / kTileN;
  /*%/causal%*/
  while (load_acquire(counters) != number) continue;
  return {number, adders};
}
/*%/ordered%*/
/*%#claimed%*/
// As they come. The first waits for nobody, the last for all others, and these only for the first. Nobody
// comes to a step before it is done with the step before, so whoever is waited for does not wait for us.
__device__ __forceinline__ Turn take_turn(int* counters, int, int adders) {
  const int number = atomicAdd(counters + 1, 1);
  const int done = number + 1 == adders ? number : min(number, 1);
  if (done > 0) {
    while (load_acquire(counters) < done) continue;
  }
  return {number, adders};
}
/*%/claimed%*/

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
    int m = tile.first_step;
#pragma unroll 1
    for (int left = tile.steps(p); left > 0; --left, ++step) {
      int* counters =
          p.turns + kCounters * ((tile.batch * p.heads + head) * (anew(p.padded_q) / kTileM) + m);
      const Turn turn = take_turn(counters, tile.key, adders_of(m, p));
      const unsigned long long dq =
          reinterpret_cast<unsigned long long>(p.dq) +
          2 * (tile.batch * p.dq_batch + head * p.dq_head + anew(m) * kTileM * p.dq_row);
      const unsigned how = (turn.number == 0 ? kStores : 0) | (turn.number + 1 == turn.of ? kConverts : 0);
      store_shared(shared + kOrders + 16 * (step & 1),
                   uint4{how, static_cast<unsigned>(anew(p.seqlen_q) - m * kTileM), static_cast<unsigned>(dq),
                         static_cast<unsigned>(dq >> 32)});
      mbarrier_arrive(shared + kMayAdd + 8 * (step & 1));
      mbarrier_wait(shared + kAdded + 8 * (step & 1), step >> 1 & 1);
      add_release(counters, 1);
      if (++m == tile.end_step) {
        m = tile.first_step;
        ++head;
      }
    }
  }
}
