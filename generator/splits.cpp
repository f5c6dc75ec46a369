#include "generator/splits.hpp"

#include <algorithm>
#include <cmath>

namespace flashjit {

QuerySplits query_splits(const Problem& problem, const Shape& shape, int splits, int tile_m) {
  const int group = shape.heads / shape.kv_heads();
  QuerySplits made{.heads = std::min(group, splits)};
  while (group % made.heads != 0) --made.heads;
  const int steps = std::max(1, (shape.seqlen_q + tile_m - 1) / tile_m);
  if (!problem.causal) made.rows = std::min(group == 1 ? std::min(splits, 2) : splits / made.heads, steps);
  return made;
}

DividedTiles divided_tiles(long long tiles, int heads, int steps, long long ctas) {
  // What division costs, by a simulation of how CTAs take tiles and by timings
  // (docs/performance/wgmma-backward/last-tiles.md): in tiles, in steps of all heads, and in steps of one
  // head for each wave, since idle CTAs turn sums into dQ.
  constexpr double kTiles = 1.0 / 16, kSteps = 4, kStepsOfWave = 0.25;
  constexpr int kLeastSteps = 8, kMostSteps = 1 << 20;
  const double exact = static_cast<double>(tiles) / static_cast<double>(ctas);
  DividedTiles made{.waves = std::ceil(exact)};
  if (tiles <= ctas || steps < kLeastSteps || steps > kMostSteps) return made;
  const double divided = exact + kTiles + (kSteps / heads + kStepsOfWave * exact) / steps;
  if (divided >= made.waves) return made;
  made.count = most_divided_tiles(tiles, ctas);
  made.least_steps = steps / 8;
  made.more_steps = steps / 2 - made.least_steps;
  made.waves = divided;
  return made;
}

int most_divided_tiles(long long tiles, long long ctas) {
  return static_cast<int>(std::min(tiles, ctas * 3 / 4));
}

}  // namespace flashjit
