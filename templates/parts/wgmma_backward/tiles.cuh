// Which tile of keys comes when, and which queries see it.
#pragma once
#include "params/backward.h"
#include "parts/anew_divisor.cuh"
/*%#causal%*/
#include "parts/diagonal.cuh"
/*%/causal%*/
#include "parts/divide.cuh"
/*%#sections%*/
#include "parts/wgmma_backward/sections.cuh"
/*%/sections%*/
#include "ptx/grid_size.cuh"
/*%#dq%*/
#include "ptx/load_acquire.cuh"
/*%/dq%*/
/*%#pair%*/
#include "ptx/cluster.cuh"
/*%/pair%*/

constexpr int kTileKeys = kTileN * kCtasPerTile;

struct KeyTile {
  int key;  // the first of this CTA's
  int head_kv, batch;
  /*%#splits%*/
  int heads_met;  // which part of the query heads, counted over the batch
  /*%/splits%*/
  /*%#divided%*/
  int divided;     // which of the divided tiles it is a part of; negative in a whole one
  /*%/divided%*/
  int first_step;  // of kTileM queries, the first that the tile meets …
  int end_step;    // … and the one after the last: the same for each query head of the group
  /*%#rotated%*/
  int start_step;  // where the tile begins; after the last step it goes on at the first
  /*%/rotated%*/
  /*%#divided%*/
  int stop_step;      // the last step that it takes of each head's …
  int steps_of_head;  // … and how many
  /*%/divided%*/
  /*%#diagonal_first%*/
  int second_step;  // where it goes on after the first; after the last step comes the one after the first
  /*%/diagonal_first%*/

  __device__ __forceinline__ int steps(const BackwardParams& p) const {
    /*%^divided%*/
    return p.group * max(0, end_step - first_step);
    /*%/divided%*/
    /*%#divided%*/
    return p.group * steps_of_head;
    /*%/divided%*/
  }
  // The first query head that it meets, counted over the batch.
  __device__ __forceinline__ int first_head(const BackwardParams& p) const {
    /*%^splits%*/
    return batch * p.heads + head_kv * p.group;
    /*%/splits%*/
    /*%#splits%*/
    return heads_met * p.group;
    /*%/splits%*/
  }
  /*%#diagonal_first%*/
  __device__ __forceinline__ int starts_at() const { return first_step; }
  // Goes on to the next step. Returns whether that is the first of the group's next head.
  __device__ __forceinline__ bool advance(int& m) const {
    if (m == first_step) {
      m = second_step;
      return second_step == first_step;  // there is only one
    }
    if (++m == end_step) m = first_step + 1;
    if (m != second_step) return false;
    m = first_step;
    return true;
  }
  /*%#step_before%*/
  __device__ __forceinline__ int step_before(int m) const {
    if (m == second_step) return first_step;
    if (m == first_step) m = second_step;
    return (m == first_step + 1 ? end_step : m) - 1;
  }
  /*%/step_before%*/
  /*%/diagonal_first%*/
  /*%#divided%*/
  __device__ __forceinline__ int starts_at() const { return start_step; }
  // Goes on to the next step. Returns whether that is the first of the group's next head.
  __device__ __forceinline__ bool advance(int& m) const {
    const bool stops = m == stop_step;
    if (stops) m = start_step - 1;
    if (++m == end_step) m = 0;
    return stops;
  }
  /*%#step_before%*/
  __device__ __forceinline__ int step_before(int m) const {
    if (m == start_step) return stop_step;
    return (m == 0 ? end_step : m) - 1;
  }
  /*%/step_before%*/
  /*%/divided%*/
  /*%#in_a_row%*/
  __device__ __forceinline__ int starts_at() const {
    /*%#rotated%*/
    return start_step;
    /*%/rotated%*/
    /*%^rotated%*/
    return first_step;
    /*%/rotated%*/
  }
  // Goes on to the next step. Returns whether that is the first of the group's next head.
  __device__ __forceinline__ bool advance(int& m) const {
    if (++m == end_step) m = first_step;
    return m == starts_at();
  }
  /*%#step_before%*/
  __device__ __forceinline__ int step_before(int m) const { return (m == first_step ? end_step : m) - 1; }
  /*%/step_before%*/
  /*%/in_a_row%*/
  /*%#dq_direct%*/
  // Rows of the workspace's arrays before those of the first head that it meets.
  __device__ __forceinline__ long long first_row(const BackwardParams& p) const {
    return static_cast<long long>(first_head(p)) * p.padded_q;
  }
  /*%/dq_direct%*/
};

__device__ __forceinline__ int tile_count(const BackwardParams& p) {
  /*%^splits%*/
  /*%^divided%*/
  return p.tiles * p.heads_kv * p.batch;
  /*%/divided%*/
  /*%#divided%*/
  return p.undivided_tiles + 2 * p.divided_tiles;
  /*%/divided%*/
  /*%/splits%*/
  /*%#splits%*/
  if (p.seqlen_q == 0) return 0;  // dK and dV are zero, and there are no sums
  return p.tiles * p.head_parts * p.row_splits * p.batch;
  /*%/splits%*/
}

/*%#waits_for_later%*/
// Whether all tiles of a head can be at work at once (the launch is cooperative), and so may wait for any of
// the others.
__device__ __forceinline__ bool all_at_once(const BackwardParams& p) {
  return kCtasPerTile * anew(p.tiles) <= grid_size();
}

// Whether a CTA's tile `index` may have to wait for the tile that is taken next, since both are of one head:
// then the CTA must not take that one yet.
__device__ __forceinline__ bool may_wait_for_next(int index, const BackwardParams& p) {
  return index >= 0 && all_at_once(p) &&
         divide(load_acquire(p.tile_counter), p.by_tiles) <= divide(index, p.by_tiles);
}
/*%/waits_for_later%*/

/*%#diagonal_first%*/
constexpr int kSpreadTiles = 64;  // of a head
/*%/diagonal_first%*/
/*%#rotated%*/
/*%^dq_ordered%*/
constexpr int kStepsApart = 2;  // at the most
/*%/dq_ordered%*/
/*%/rotated%*/
/*%#spread%*/
// Where the n-th tile of a head starts if they are evenly spread over `steps`.
__device__ __forceinline__ int spread_start(int n, int steps, const BackwardParams& p) {
  const long long before = static_cast<long long>(n) * steps;
  return before <= 0x7fffffff ? divide(static_cast<int>(before), p.by_tiles) : 0;
}

/*%/spread%*/
__device__ __forceinline__ KeyTile tile_at(int index, const BackwardParams& p) {
  /*%#sections%*/
  const auto [batch_head, n] = place_at(index, p);  // the first keys have the longest tile
  /*%/sections%*/
  /*%^sections%*/
  const int tiles = anew(p.tiles);
  /*%#divided%*/
  // After the larger parts of the divided tiles come the smaller ones, the largest of these first.
  int divided = index - anew(p.undivided_tiles);
  const bool smaller = divided >= anew(p.divided_tiles);
  if (smaller) {
    divided = 2 * anew(p.divided_tiles) - 1 - divided;
    index = anew(p.undivided_tiles) + divided;
  }
  /*%/divided%*/
  // All tiles of a head, then the next head: what runs together shares Q and dO.
  const int batch_head = divide(index, anew(p.by_tiles));
  int n = index - batch_head * tiles;
  /*%#last_keys_first%*/
  n = tiles - 1 - n;  // the tile that comes first to some queries is the one that starts there
  /*%/last_keys_first%*/
  /*%/sections%*/
  KeyTile tile;
  tile.key = n * kTileKeys;
  /*%^splits%*/
  tile.batch = divide(batch_head, p.by_heads_kv);
  tile.head_kv = batch_head - tile.batch * p.heads_kv;
  /*%/splits%*/
  /*%#splits%*/
  /*%#causal%*/
  tile.heads_met = batch_head;
  /*%/causal%*/
  /*%^causal%*/
  tile.heads_met = divide(batch_head, p.by_row_splits);
  const int row_part = batch_head - tile.heads_met * p.row_splits;
  /*%/causal%*/
  tile.batch = divide(tile.heads_met, p.by_head_parts);
  tile.head_kv = divide(tile.heads_met - tile.batch * p.head_parts, p.by_head_splits);
  /*%/splits%*/
  tile.end_step = (anew(p.seqlen_q) + kTileM - 1) / kTileM;
  /*%#causal%*/
  tile.first_step = max(0, tile.key - diagonal(p)) / kTileM;
  /*%/causal%*/
  /*%^causal%*/
  /*%^splits%*/
  tile.first_step = 0;
  /*%/splits%*/
  /*%#splits%*/
  const int steps = tile.end_step;
  tile.first_step = divide(row_part * steps, p.by_row_splits);
  tile.end_step = divide((row_part + 1) * steps, p.by_row_splits);
  /*%/splits%*/
  /*%/causal%*/
  /*%#rotated%*/
  /*%#dq_ordered%*/
  // Tiles start evenly spread over the queries, so that each finds its turn when it comes.
  tile.start_step = all_at_once(p) ? spread_start(n, tile.end_step, p) : 0;
  /*%/dq_ordered%*/
  /*%^dq_ordered%*/
  // So that tiles do not add at the same places at once; but what one has loaded or added others find in L2.
  tile.start_step =
      tile.first_step + min(kStepsApart * n, spread_start(n, tile.end_step - tile.first_step, p));
  /*%/dq_ordered%*/
  /*%/rotated%*/
  /*%#divided%*/
  // A divided tile's smaller part goes on where its larger one stops.
  tile.divided = divided;
  tile.steps_of_head = tile.end_step;
  if (divided >= 0) {
    const int fewer = anew(p.least_steps) + divide(divided * p.more_steps, anew(p.by_divided_tiles));
    const int more = tile.end_step - fewer;
    tile.steps_of_head = smaller ? fewer : more;
    if (smaller) tile.start_step += more;
    if (tile.start_step >= tile.end_step) tile.start_step -= tile.end_step;
  }
  tile.stop_step = tile.start_step + tile.steps_of_head - 1;
  if (tile.stop_step >= tile.end_step) tile.stop_step -= tile.end_step;
  /*%/divided%*/
  /*%#diagonal_first%*/
  const int others = tile.end_step - tile.first_step - 1;
  tile.second_step = tile.first_step + (others > 0 ? 1 : 0);
  // Tiles of long sequences are spread after their first step, so that they do not add at the same places at
  // once. In short ones that costs more than it gives.
  if (others > 0 && anew(p.tiles) >= kSpreadTiles) tile.second_step += spread_start(n, others, p);
  /*%/diagonal_first%*/
  /*%#pair%*/
  tile.key += cluster_rank() * kTileN;  // the steps are both CTAs'
  /*%/pair%*/
  return tile;
}
