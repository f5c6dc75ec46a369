#include "generator/splits.hpp"

#include <algorithm>

namespace flashjit {

QuerySplits query_splits(const Problem& problem, const Shape& shape, int splits, int tile_m) {
  const int group = shape.heads / shape.kv_heads();
  QuerySplits made{.heads = std::min(group, splits)};
  while (group % made.heads != 0) --made.heads;
  const int steps = std::max(1, (shape.seqlen_q + tile_m - 1) / tile_m);
  if (!problem.causal) made.rows = std::min(group == 1 ? std::min(splits, 2) : splits / made.heads, steps);
  return made;
}

}  // namespace flashjit
