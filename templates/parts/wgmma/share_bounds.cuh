// Where even shares begin and end (stream-K, arXiv 2301.03598): the keys of the first p.shared_tiles tiles
// lie in one row, which is cut into as many pieces as there are CTAs, at blocks of kTileN keys.
/*%#cluster%*/
// CTAs of a cluster have tiles that lie side by side and count as one, and the same share of them.
/*%/cluster%*/
#pragma once
#include "params/forward.h"
#include "parts/divide.cuh"
#include "parts/wgmma/tiles.cuh"

struct Place {
  int tile, block;
};

// That some row of the tile sees; one where there are none, so that rows are stored all the same.
__device__ __forceinline__ int blocks_of_tile(const Tile& tile, const ForwardParams& p) {
  return max(1, (visible_keys(tile.row + kTileM, p) + kTileN - 1) / kTileN);
}

/*%^causal%*/
// Tiles have as many blocks each, and the first `longer` shares one block more than the others.
struct ShareBounds {
  int of_tile, blocks, longer;

  __device__ __forceinline__ explicit ShareBounds(const ForwardParams& p)
      : of_tile(max(1, (p.seqlen_k + kTileN - 1) / kTileN)) {
    const int all = p.shared_tiles * of_tile, shares = tiles_dealt();
    blocks = divide(all, shares);
    longer = all - blocks * shares;
  }
  __device__ __forceinline__ Place begin(int share) const {
    const int block = share * blocks + min(share, longer), tile = divide(block, of_tile);
    return {tile, block - tile * of_tile};
  }
  // The share that has a block of a tile.
  __device__ __forceinline__ int owner(int tile, int block) const {
    const int in_row = tile * of_tile + block, of_longer = longer * (blocks + 1);
    const bool is_longer = in_row < of_longer;
    return (is_longer ? 0 : longer) +
           divide(is_longer ? in_row : in_row - of_longer, is_longer ? blocks + 1 : blocks);
  }
};
/*%/causal%*/
/*%#causal%*/
// Tiles of a head come in the order in which they see fewer and fewer keys, by the queries of a tile from one
// to the next, at last none. A tile weighs as many keys as it sees, and a block, which its beginning and end
// take as long as. No share weighs less than two blocks, so that none is empty.
struct ShareBounds {
  int queries;      // of a tile
  int tiles;        // of a head
  int first, past;  // what the first tile would see, were it full of queries, and how much that is too many
  int seeing;       // tiles that see a key
  int of_head, all, shares;

  __device__ __forceinline__ explicit ShareBounds(const ForwardParams& p)
      : queries(kTileM >> p.packed), tiles(p.tiles_m), shares(tiles_dealt()) {
    first = tiles * queries + p.seqlen_k - p.seqlen_q;
    past = max(0, first - max(1, p.seqlen_k));
    seeing = first < 1 ? 0 : min(tiles, divide(first - 1, queries) + 1);
    of_head = before(tiles);
    all = divide(p.shared_tiles, tiles) * of_head;
  }
  // What the first n tiles of a head weigh.
  __device__ __forceinline__ int before(int n) const {
    const int see = min(n, seeing);
    return see * first - queries * (see * (see - 1) / 2) - (n > 0 ? past : 0) + (n - see) + n * kTileN;
  }
  __device__ __forceinline__ Place begin(int share) const {
    const int weight = divide(share * all, shares), head = divide(weight, of_head);
    const int inside = weight - head * of_head;
    int tile = 0;
    for (int end = tiles; end - tile > 1;) {
      const int middle = (tile + end) / 2;
      (before(middle) <= inside ? tile : end) = middle;
    }
    const int block = (inside - before(tile)) / kTileN;
    const bool past_end = block * kTileN >= before(tile + 1) - before(tile) - kTileN;
    return {head * tiles + tile + past_end, past_end ? 0 : block};
  }
  // The share that has a block of a tile: the last one that does not begin behind it.
  __device__ __forceinline__ int owner(int tile, int block) const {
    const int head = divide(tile, tiles);
    const int behind = head * of_head + before(tile - head * tiles) + (block + 1) * kTileN;
    return divide(behind * shares - 1, all);
  }
};
/*%/causal%*/
