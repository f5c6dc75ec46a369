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

}  // namespace flashjit
