// How CTAs of a backward pass share out the queries that meet a tile of keys.
#pragma once

#include "flashjit/problem.hpp"

namespace flashjit {

// Into how many parts a tile's queries are divided: the query heads that share its keys, and each head's
// rows.
struct QuerySplits {
  int heads = 1, rows = 1;
  int parts() const { return heads * rows; }
};

// As many parts of heads as possible, up to `splits`, all with the same number of them; then as many of rows,
// in steps of tile_m, as `splits` still allows. Under a mask rows stay together, since tiles differ in length
// anyway. Where no heads share keys there are two parts at the most: two shares have the same sum in either
// order, so that dK and dV stay bit-equal from run to run.
QuerySplits query_splits(const Problem& problem, const Shape& shape, int splits, int tile_m);

// The last tiles of a grid over keys, each of which is divided into a larger and a smaller part of its
// queries. CTAs take the larger parts in the order of tiles, and then the smaller ones, the last tile's
// first. These go from half a tile down to an eighth, so that all CTAs end at about the same time, whatever
// the number of tiles. Two parts of dV and dK have the same sum in either order, so that these stay bit-equal
// from run to run.
struct DividedTiles {
  int count = 0;        // 0: no tile is worth dividing
  int least_steps = 0;  // of each head's queries, in the smaller part of the first divided tile …
  int more_steps = 0;   // … and how many more there would be in a tile after the last one
  double waves = 0;     // how long the grid takes, in tiles
};

// Of `tiles` tiles with `steps` steps along the queries of each of `heads` heads, where `ctas` CTAs take one
// tile after another.
DividedTiles divided_tiles(long long tiles, int heads, int steps, long long ctas);

// How many these may be. A workspace has room for so many, so that it is large enough for smaller shapes,
// too.
int most_divided_tiles(long long tiles, long long ctas);

}  // namespace flashjit
