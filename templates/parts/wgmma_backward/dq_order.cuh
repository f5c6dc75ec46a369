// A tile's rank among those that add to a step's dQ: the order in which they come there, beginning with who
// starts there. Unless all tiles are at work at once, it is also the order in which they are taken, so that
// whoever is waited for is at work already.
#pragma once
#include "params/backward.h"
#include "params/backward_rows.h"
#include "parts/wgmma_backward/tiles.cuh"
#include "ptx/load_acquire.cuh"

// Counters: one for each step's queries, after those of others, of which every head has room for two.
static_assert(kTileM >= 2 * kBackwardCounterRows && kBackwardRowPadding / kBackwardCounterRows / 2 >= 2);

struct DqRank {
  int number;  // from 0
  /*%^rotated%*/
  // Tile n is the n-th from the last of those that see some of the step's queries.
  __device__ __forceinline__ DqRank(const KeyTile& tile, const BackwardParams& p) {
    move_to(tile.starts_at(), false, tile, p);
  }
  /*%#causal%*/
  __device__ __forceinline__ void move_to(int m, bool, const KeyTile& tile, const BackwardParams& p) {
    const int adders =
        min(anew(p.tiles),
            ((m + 1) * kTileM + (anew(p.seqlen_k) - anew(p.seqlen_q)) + kTileKeys - 1) / kTileKeys);
    /*%/causal%*/
    /*%^causal%*/
  __device__ __forceinline__ void move_to(int, bool, const KeyTile& tile, const BackwardParams& p) {
    const int adders = anew(p.tiles);
    /*%/causal%*/
    number = adders - 1 - tile.key / kTileKeys;
  }
  /*%/rotated%*/
  /*%#rotated%*/
  // Tile f, counted on from tile n, is the last that starts at step m or before: f = ((m + 1) tiles - 1) /
  // steps. The division's rest tells when f goes up.
  int rest;
  __device__ __forceinline__ DqRank(const KeyTile& tile, const BackwardParams& p) {
    const int n = tile.key / kTileKeys, above = (tile.start_step + 1) * anew(p.tiles) - 1;
    const int last = above / max(1, tile.end_step);  // without queries there are no steps
    number = all_at_once(p) ? last - n : n;
    rest = above - last * tile.end_step;
  }
  __device__ __forceinline__ void move_to(int, bool next_head, const KeyTile& tile, const BackwardParams& p) {
    if (!all_at_once(p)) return;
    rest += anew(p.tiles);
    for (; rest >= tile.end_step; rest -= tile.end_step) ++number;
    if (next_head) number -= anew(p.tiles);
  }
  /*%/rotated%*/
};

// Shares of step m's queries that have left, from every CTA of a tile: those of the first, and others' where
// they keep the order. Heads are query heads, counted over the batch.
__device__ __forceinline__ int* shares_left(int head, int m, const BackwardParams& p) {
  const int steps = anew(p.padded_q) / (2 * kBackwardCounterRows);  // room for them
  return p.counters + (anew(p.batch) * p.heads + head) * steps + m;
}

__device__ __forceinline__ void wait_for_earlier(const int* shares, const DqRank& rank) {
  /*%#dq_ordered%*/
  const int awaited = rank.number * kCtasPerTile;
  /*%/dq_ordered%*/
  /*%^dq_ordered%*/
  const int awaited = min(rank.number, 1) * kCtasPerTile;
  /*%/dq_ordered%*/
  if (awaited > 0) {
    while (load_acquire(shares) < awaited) continue;
  }
}

// For one thread: work(shares, head, m, first) at each step of a tile, once those before it in the order have
// left theirs; `first` says that nobody's share has left before.
template <class Work>
__device__ __forceinline__ void add_in_order(const KeyTile& tile, int& step, const BackwardParams& p,
                                             const Work& work) {
  DqRank rank(tile, p);
  int head = tile.batch * p.heads + tile.head_kv * p.group;
  int m = tile.starts_at();
#pragma unroll 1
  for (int left = tile.steps(p); left > 0; --left, ++step) {
    int* const shares = shares_left(head, m, p);
    wait_for_earlier(shares, rank);
    work(shares, head, m, rank.number == 0);
    const bool next_head = tile.advance(m);
    if (next_head) ++head;
    rank.move_to(m, next_head, tile, p);
  }
}
