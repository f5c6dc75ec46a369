// Where even shares begin and end (stream-K, arXiv 2301.03598): the keys of the first p.shared_tiles tiles
// lie in one row, which is cut at blocks of kTileN keys into shares, one for each CTA.
/*%#cluster%*/
// CTAs of a cluster count as one here: they have the same share, of tiles that lie side by side.
/*%/cluster%*/
#pragma once
#include "params/forward.h"
#include "parts/divide.cuh"
#include "parts/wgmma/tiles.cuh"

struct Place {
  int tile, block;
};

// Blocks that some row of the tile sees; one where there are none, so that rows are stored all the same.
__device__ __forceinline__ int blocks_of_tile(const Tile& tile, const ForwardParams& p) {
  return max(1, (keys_before(tile.row + kTileM, p) + kTileN - 1) / kTileN);
}

/*%#causal%*/
// What the first n tiles of a head weigh. Its tiles come in the order in which they see fewer and fewer keys,
// each by the queries of a tile less than the one before, at last none. A tile weighs as many keys as it
// sees, at least one, and a block, since its beginning and end take as long as one. No share weighs less than
// two blocks, so that none is empty.
__device__ __forceinline__ int weight_before(int n, const ForwardParams& p) {
  const int queries = kTileM >> p.packed;  // of a tile
  const int see = min(n, p.cuts.row.seeing);
  return see * p.cuts.row.first - queries * (see * (see - 1) / 2) - (n > 0 ? p.cuts.row.past : 0) +
         (n - see) + n * kTileN;
}

/*%/causal%*/
// Where a share begins, and the one before it ends.
__device__ __forceinline__ Place begin_of_share(int share, const ForwardParams& p) {
  const int cut = divide(share * p.cuts.row.all, p.cuts.by_shares), unit = divide(cut, p.cuts.by_unit);
  const int inside = cut - unit * p.cuts.row.unit;
  /*%^causal%*/
  return {unit, inside};
  /*%/causal%*/
  /*%#causal%*/
  int tile = 0;
  for (int end = min(p.tiles_m, p.shared_tiles); end - tile > 1;) {
    const int middle = (tile + end) / 2;
    (weight_before(middle, p) <= inside ? tile : end) = middle;
  }
  const int before = weight_before(tile, p), block = (inside - before) / kTileN;
  const bool past_end = block * kTileN >= weight_before(tile + 1, p) - before - kTileN;
  return {unit * p.tiles_m + tile + past_end, past_end ? 0 : block};
  /*%/causal%*/
}

// The share that has a block of a tile: the last one that does not begin after it.
__device__ __forceinline__ int share_of(int tile, int block, const ForwardParams& p) {
  /*%^causal%*/
  const int behind = tile * p.cuts.row.unit + block + 1;
  /*%/causal%*/
  /*%#causal%*/
  const int head = divide(tile, p.by_tiles);
  const int behind =
      head * p.cuts.row.unit + weight_before(tile - head * p.tiles_m, p) + (block + 1) * kTileN;
  /*%/causal%*/
  return divide(behind * tiles_dealt() - 1, p.cuts.by_all);
}
