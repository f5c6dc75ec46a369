// Which tile comes when, and which keys its rows see.
#pragma once
#include "params/forward.h"
/*%#causal%*/
#include "parts/diagonal.cuh"
/*%/causal%*/
#include "parts/divide.cuh"
/*%#in_clusters%*/
#include "ptx/cluster.cuh"
/*%/in_clusters%*/
#include "ptx/tensor_map.cuh"

// With p.packed = 0 a row is a query. Else the rows of p.heads_of_pack heads that share K and V lie side by
// side: heads first, in 2^p.packed places, then queries.
struct Tile {
  int row;   // first
  int pack;  // of heads, or a head
  int batch;
  /*%#own_keys%*/
  int blocks;  // blocks of kTileN keys that some row of the tile sees: 0 .. blocks - 1
  /*%/own_keys%*/
  /*%#pair_keys%*/
  int blocks;  // blocks of kTileN keys that some row of the cluster's tiles sees: 0 .. blocks - 1
  /*%/pair_keys%*/
  /*%#split%*/
  // This CTA's share of the blocks of kTileN keys that some row of the tile sees: `blocks` of them, every
  // `shares`-th one from `first` on.
  int first, shares, blocks;
  /*%/split%*/
  /*%#even%*/
  bool whole;  // nobody else has a share of it
  int index;   // its number, as in tile_at()
  int first;   // first of the blocks of kTileN keys that this CTA has
  int length;  // how many adjacent blocks it has
  int blocks;  // how many of them some row of the tile sees
  /*%/even%*/
};

/*%#split%*/
// How many of the first n blocks are in the CTA's share. Blocks are dealt like cards, so that CTAs that work
// side by side read adjacent ones.
__device__ __forceinline__ int blocks_of_share(int n, const Tile& tile) {
  return (n - tile.first + tile.shares - 1) / tile.shares;
}

/*%/split%*/
/*%#even%*/
// How many of the first n blocks are in the CTA's share.
__device__ __forceinline__ int blocks_of_share(int n, const Tile& tile) {
  return max(0, min(n - tile.first, tile.length));
}

/*%/even%*/
// From the first row of a warpgroup to that of the next.
/*%^alternate%*/
constexpr int kRowStep = 64;
/*%/alternate%*/
/*%#alternate%*/
// A cluster's CTAs take 64 rows in turn, so that none has all the late ones, which see more keys.
constexpr int kRowStep = 64 * kCluster;
/*%/alternate%*/

__device__ __forceinline__ int row_count(const ForwardParams& p) {
  return p.seqlen_q << p.packed;
}

// By a shift, which ptxas places better than one more parameter.
__device__ __forceinline__ int packs_of_sequence(const ForwardParams& p) {
  return p.places >> p.packed;
}

/*%#causal%*/
// How many keys, from the first on, some row before `row_end` sees.
__device__ __forceinline__ int keys_before(int row_end, const ForwardParams& p) {
  return max(0, min(p.seqlen_k, ((min(row_end, row_count(p)) - 1) >> p.packed) + 1 + diagonal(p)));
}
/*%/causal%*/
/*%^causal%*/
// How many keys rows see: all.
__device__ __forceinline__ int keys_before(int, const ForwardParams& p) {
  return p.seqlen_k;
}
/*%/causal%*/

/*%^split%*/
/*%#cluster%*/
// Tiles of all CTAs of a cluster count as one.
/*%/cluster%*/
__device__ __forceinline__ int tile_count(const ForwardParams& p) {
  return p.tiles_m * packs_of_sequence(p) * p.batch;
}

/*%/split%*/
/*%#rows_by_head%*/
// Which of a pack's heads a row belongs to; from p.heads_of_pack on, to none.
__device__ __forceinline__ int place_of(int row, const ForwardParams& p) {
  return row & ((1 << p.packed) - 1);
}

/*%/rows_by_head%*/
// Where a panel of 64 rows of Q or O starts: {columns, heads of a pack, queries, packs, batches}.
__device__ __forceinline__ BoxOrigin rows_at(int panel, int row, const Tile& tile, const ForwardParams& p) {
  return {64 * panel, 0, row >> p.packed, tile.pack, tile.batch};
}

/*%#split%*/
// The p.clusters clusters of a tile lie side by side, and so do a cluster's CTAs: which tile is this CTA's,
// and which of the tile's clusters it is in.
__device__ __forceinline__ int only_tile(const ForwardParams& p) {
  return divide(static_cast<int>(blockIdx.x) / kCluster, p.by_clusters);
}
__device__ __forceinline__ int cluster_of_tile(const ForwardParams& p) {
  return static_cast<int>(blockIdx.x) / kCluster - only_tile(p) * p.clusters;
}

/*%/split%*/
/*%#sections%*/
// Longest tiles first, among the heads of a section: what runs together finds its K and V in L2.
/*%/sections%*/
/*%^sections%*/
/*%#causal%*/
// All tiles of a head, the longest first, then the next head: what runs together shares K and V.
/*%/causal%*/
/*%^causal%*/
// All tiles of a head, the last rows first, then the next head: what runs together shares K and V.
/*%/causal%*/
/*%/sections%*/
__device__ __forceinline__ Tile tile_at(int index, const ForwardParams& p) {
  const int packs = packs_of_sequence(p);
  /*%#sections%*/
  const int first_head = min(divide(index, p.by_section_tiles) * p.section, p.last_section);
  const bool last = first_head == p.last_section;
  const int inside = index - first_head * p.tiles_m;
  const int heads_here = last ? packs * p.batch - p.last_section : p.section;
  const int before = divide(inside, last ? p.by_last_section : p.by_section);
  const int m = p.tiles_m - 1 - before;
  const int batch_head = first_head + inside - before * heads_here;
  /*%/sections%*/
  /*%^sections%*/
  const int batch_head = divide(index, p.by_tiles);
  const int m = p.tiles_m - 1 - (index - batch_head * p.tiles_m);
  /*%/sections%*/
  Tile tile;
  /*%^cluster%*/
  tile.row = m * kTileM;
  /*%/cluster%*/
  /*%#cluster%*/
  /*%^alternate%*/
  tile.row = (m * kCluster + cluster_rank()) * kTileM;
  /*%/alternate%*/
  /*%#alternate%*/
  tile.row = m * (kCluster * kTileM) + 64 * cluster_rank();
  /*%/alternate%*/
  /*%/cluster%*/
  tile.batch = divide(batch_head, p.by_heads);
  tile.pack = batch_head - tile.batch * packs;
  /*%#own_keys%*/
  tile.blocks = (keys_before(tile.row + kTileM, p) + kTileN - 1) / kTileN;
  /*%/own_keys%*/
  /*%#pair_keys%*/
  tile.blocks = (keys_before((m + 1) * (kCluster * kTileM), p) + kTileN - 1) / kTileN;
  /*%/pair_keys%*/
  /*%#split%*/
  const int seen = (keys_before(tile.row + kTileM, p) + kTileN - 1) / kTileN;
  tile.shares = p.clusters * kCluster;
  tile.first = cluster_of_tile(p) * kCluster + cluster_rank();
  tile.blocks = blocks_of_share(seen, tile);
  /*%/split%*/
  return tile;
}

/*%#static_order%*/
// Tiles are dealt like cards, in the order of their numbers: which tile comes first here, and how many are
// dealt in a round.
/*%^cluster%*/
__device__ __forceinline__ int first_tile() {
  return static_cast<int>(blockIdx.x);
}
__device__ __forceinline__ int tiles_dealt() {
  return static_cast<int>(gridDim.x);
}
/*%/cluster%*/
/*%#cluster%*/
__device__ __forceinline__ int first_tile() {
  return static_cast<int>(blockIdx.x) / kCluster;
}
__device__ __forceinline__ int tiles_dealt() {
  return static_cast<int>(gridDim.x) / kCluster;
}
/*%/cluster%*/

/*%/static_order%*/
/*%#even%*/
// The CTA of `cluster` that has the same rows as this one has here.
/*%^cluster%*/
__device__ __forceinline__ int counterpart(int cluster) {
  return cluster;
}
/*%/cluster%*/
/*%#cluster%*/
__device__ __forceinline__ int counterpart(int cluster) {
  return cluster * kCluster + cluster_rank();
}
/*%/cluster%*/
/*%/even%*/
