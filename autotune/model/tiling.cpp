#include "autotune/model/tiling.hpp"

#include <algorithm>
#include <variant>

#include "generator/recipe.hpp"
#include "generator/render.hpp"

namespace flashjit::autotune {
namespace {

// Where tiles are very many, a few thousand stand for all.
Steps steps_of(const Tiling& tiling) {
  constexpr std::int64_t kLookedAt = 4096;
  const int sharers = tiling.splits * tiling.clusters;
  const std::int64_t tiles =
      (static_cast<std::int64_t>(tiling.shape.seqlen_q) + tiling.rows - 1) / tiling.rows;
  const std::int64_t stride = (tiles + kLookedAt - 1) / kLookedAt;
  Steps steps{.tiles = static_cast<double>(tiles)};
  for (std::int64_t tile = 0; tile < tiles; tile += stride) {
    const std::int64_t longest_share = (blocks_of_tile(tiling, tile) + sharers - 1) / sharers;
    const auto count = static_cast<double>(longest_share);
    steps.total += count * static_cast<double>(std::min(stride, tiles - tile));
    steps.longest = std::max(steps.longest, count);
  }
  return steps;
}

// Clusters that run side by side, with one CTA on each multiprocessor. A cluster's multiprocessors are
// neighbours, in groups some of which do not divide into clusters: what cuOccupancyMaxActiveClusters says of
// an H200's 132.
int clusters_at_once(const Target& target, int ctas) {
  constexpr int kOfH200[] = {132, 66, 39, 30, 22, 17, 15, 15};
  return kOfH200[ctas - 1] * target.sm_count / kOfH200[0];
}

}  // namespace

std::int64_t blocks_of_tile(const Tiling& tiling, std::int64_t tile) {
  std::int64_t keys = tiling.shape.seqlen_k;
  if (tiling.seen.causal) {
    // A cluster's tile ends where its last row does. The rows that are dealt to one CTA end this many rows
    // sooner on average, and the CTA computes nothing for keys that these do not see.
    const int sooner = tiling.rows / 2 * (tiling.cluster - 1) / tiling.cluster;
    const std::int64_t end = std::min<std::int64_t>((tile + 1) * tiling.rows - sooner, tiling.shape.seqlen_q);
    const std::int64_t last = (end - 1) >> tiling.packed;
    const int queries = tiling.shape.seqlen_q >> tiling.packed;
    keys = std::clamp<std::int64_t>(last + 1 + tiling.shape.seqlen_k - queries, 0, tiling.shape.seqlen_k);
  }
  return (keys + tiling.tile_n - 1) / tiling.tile_n;
}

Tiling tiling_of(const Problem& problem, const Shape& shape, const Schedule& schedule, const Target& target) {
  const auto* wgmma = std::get_if<WgmmaSchedule>(&schedule);
  const Pack pack = pack_of(problem, shape, schedule);
  Tiling tiling{.seen = problem,
                .shape = as_tiled(shape, pack),
                .packed = pack.packed,
                .rows = rows_of_tile(schedule),
                .tile_n = get(schedule, "tile_n")};
  // Rows of several heads may fill a tile. If they are of few queries they see nearly all keys, if of a
  // single query all.
  tiling.seen.causal =
      problem.causal && (pack.packed == 0 ? shape.seqlen_q > 1 : tiling.shape.seqlen_q > tiling.rows);
  int ctas = 1;  // of a cluster
  if (wgmma != nullptr) {
    tiling.cluster = wgmma->cluster;
    if (problem.dtype != DType::fp32) tiling.splits = wgmma->splits;  // fp32's share out columns, not keys
    ctas = wgmma->cluster * wgmma->splits;
  }
  tiling.at_once = std::max(1, clusters_at_once(target, ctas));
  if (tiling.splits > 1)
    tiling.clusters = clusters_of_tile(geometry_wgmma(problem, *wgmma), tiling.shape, tiling.at_once);
  tiling.tiles_at_once = tiling.at_once / tiling.clusters;
  tiling.steps = steps_of(tiling);
  tiling.tiles = tiling.steps.tiles * tiling.shape.heads * tiling.shape.batch;
  tiling.waves = tiling.tiles / tiling.tiles_at_once;
  return tiling;
}

}  // namespace flashjit::autotune
