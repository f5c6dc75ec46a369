/*%#dq_ordered%*/
// A tile's rank among those that add to a step's dQ: the order in which they come there, beginning with who
// starts there. Unless all tiles are at work at once, it is also the order in which they are taken, so that
// whoever is waited for is at work already.
/*%/dq_ordered%*/
/*%^dq_ordered%*/
// Which tile's share of a step's dQ is stored: that of whoever comes there first. Others add theirs once that
// is done, so that the sums need not be cleared.
/*%#divided%*/
// By the same bits the parts of a divided tile agree who leaves its sums of dV and dK, and who adds them.
/*%/divided%*/
/*%/dq_ordered%*/
#pragma once
#include "params/backward.h"
#include "params/backward_rows.h"
#include "parts/wgmma_backward/tiles.cuh"
#include "ptx/add_release.cuh"
/*%#pair%*/
#include "ptx/cluster.cuh"
/*%/pair%*/
#include "ptx/load_acquire.cuh"
/*%^dq_ordered%*/
#include "ptx/or_acquire.cuh"
/*%/dq_ordered%*/

// Counters: one for each step's queries, after those of others, of which every head has room for two.
static_assert(kTileM >= 2 * kBackwardCounterRows && kBackwardRowPadding / kBackwardCounterRows / 2 >= 2);

/*%#dq_ordered%*/
struct DqRank {
  int number;  // from 0
  /*%^rotated%*/
  // Tile n is the n-th from the last of those that see some of the step's queries.
  __device__ __forceinline__ DqRank(const KeyTile& tile, const BackwardParams& p) {
    move_to(tile.starts_at(), false, tile, p);
  }
  __device__ __forceinline__ void move_to(int m, bool, const KeyTile& tile, const BackwardParams& p) {
    const int adders =
        min(anew(p.tiles),
            ((m + 1) * kTileM + (anew(p.seqlen_k) - anew(p.seqlen_q)) + kTileKeys - 1) / kTileKeys);
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

// Shares of step m's queries that have left, from every CTA of a tile.
/*%/dq_ordered%*/
/*%^dq_ordered%*/
// What has become of the first share of step m's queries: two bits for each CTA of a tile.
/*%/dq_ordered%*/
// Heads are query heads, counted over the batch.
__device__ __forceinline__ int* shares_left(int head, int m, const BackwardParams& p) {
  const int steps = anew(p.padded_q) / (2 * kBackwardCounterRows);  // room for them
  return p.counters + (anew(p.batch) * p.heads + head) * steps + m;
}

/*%#dq_ordered%*/
__device__ __forceinline__ void wait_for_earlier(const int* shares, const DqRank& rank) {
  const int awaited = rank.number * kCtasPerTile;
  if (awaited > 0) {
    while (load_acquire(shares) < awaited) continue;
  }
}

// Notes that this CTA's share has left.
__device__ __forceinline__ void note_share(int* shares, bool) {
  add_release(shares, 1);
}
/*%/dq_ordered%*/
/*%^dq_ordered%*/
// This CTA's bits: a first share is on its way, and has left.
__device__ __forceinline__ int first_claimed() {
  /*%^pair%*/
  return 1;
  /*%/pair%*/
  /*%#pair%*/
  return 1 << 2 * cluster_rank();  // the CTAs of a pair have columns of their own
  /*%/pair%*/
}
__device__ __forceinline__ int first_left() {
  return 2 * first_claimed();
}

// Whether this CTA's share is the first. Else returns once the first one has left.
__device__ __forceinline__ bool comes_first(int* shares) {
  int seen = or_acquire(shares, first_claimed());
  if ((seen & first_claimed()) == 0) return true;
  while ((seen & first_left()) == 0) seen = load_acquire(shares);
  return false;
}

// Notes that a first share has left.
__device__ __forceinline__ void note_share(int* shares, bool first) {
  if (first) add_release(shares, first_left());
}
/*%/dq_ordered%*/

// For one thread: work(shares, head, m, comes_first) at each step of a tile. comes_first() returns once this
// tile's share may leave, and says that nobody's has left before. What it does ends with note_share.
/*%#claims_ready%*/
// comes_first(wait_until_ready): unless a first share has left already, a CTA claims it only when its own is
// ready to leave. What that takes comes from both CTAs of a pair, and two pairs could wait for each other.
/*%/claims_ready%*/
template <class Work>
__device__ __forceinline__ void add_in_order(const KeyTile& tile, int& step, const BackwardParams& p,
                                             const Work& work) {
  /*%#dq_ordered%*/
  DqRank rank(tile, p);
  /*%/dq_ordered%*/
  int head = tile.first_head(p);
  int m = tile.starts_at();
#pragma unroll 1
  for (int left = tile.steps(p); left > 0; --left, ++step) {
    int* const shares = shares_left(head, m, p);
    /*%#dq_ordered%*/
    work(shares, head, m, [&] {
      wait_for_earlier(shares, rank);
      return rank.number == 0;
    });
    const bool next_head = tile.advance(m);
    if (next_head) ++head;
    rank.move_to(m, next_head, tile, p);
    /*%/dq_ordered%*/
    /*%^dq_ordered%*/
    /*%#claims_ready%*/
    work(shares, head, m, [&](const auto& wait_until_ready) {
      if ((load_acquire(shares) & first_left()) != 0) return false;
      wait_until_ready();
      return comes_first(shares);
    });
    /*%/claims_ready%*/
    /*%^claims_ready%*/
    work(shares, head, m, [&] { return comes_first(shares); });
    /*%/claims_ready%*/
    if (tile.advance(m)) ++head;
    /*%/dq_ordered%*/
  }
}
