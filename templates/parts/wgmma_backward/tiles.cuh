// Which tile of keys comes when, and which queries see it.
#pragma once
#include "params/backward.h"
#include "parts/wgmma_backward/tickets.cuh"

struct KeyTile {
  int key;  // the first
  int head_kv, batch;
  int first_step;  // of kTileM queries, the first that sees a key of the tile …
  int end_step;    // … and the one after the last: the same for each query head of the group

  __device__ __forceinline__ int steps(const BackwardParams& p) const {
    return p.group * max(0, end_step - first_step);
  }
  // Rows of the arrays of the workspace before this batch and K/V head's.
  __device__ __forceinline__ long long first_row(const BackwardParams& p) const {
    return (static_cast<long long>(batch) * p.heads + head_kv * p.group) * p.padded_q;
  }
};

__device__ __forceinline__ int tile_count(const BackwardParams& p) {
  return p.tiles * p.heads_kv * p.batch;
}

__device__ __forceinline__ KeyTile tile_at(int index, const BackwardParams& p) {
  const int tiles = anew(p.tiles);
  // All tiles of a head, then the next head: what runs together shares Q and dO. Causal: the first is
  // longest.
  const int batch_head = index / tiles;
  int n = index - batch_head * tiles;
  /*%#last_keys_first%*/
  n = tiles - 1 - n;  // who comes first to a tile of queries is who starts there
  /*%/last_keys_first%*/
  KeyTile tile;
  tile.key = n * kTileN;
  tile.batch = batch_head / p.heads_kv;
  tile.head_kv = batch_head - tile.batch * p.heads_kv;
  tile.end_step = (anew(p.seqlen_q) + kTileM - 1) / kTileM;
  /*%#causal%*/
  tile.first_step = max(0, tile.key + p.seqlen_q - p.seqlen_k) / kTileM;
  /*%/causal%*/
  /*%^causal%*/
  tile.first_step = 0;
  /*%/causal%*/
  return tile;
}
