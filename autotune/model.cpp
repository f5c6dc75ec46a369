// The analytic model: how tiles of so many steps (step.hpp) fill the GPU.
//
// It is there to rank: which schedules deserve a compile, and which one to run when nobody measured.
#include <algorithm>
#include <cmath>

#include "autotune/backward/backward.hpp"
#include "autotune/makespan.hpp"
#include "autotune/memory.hpp"
#include "autotune/step.hpp"
#include "autotune/tune.hpp"
#include "generator/recipe.hpp"
#include "generator/render.hpp"

namespace flashjit::autotune {
namespace {

constexpr double kLaunchMs = 0.004, kSharedLaunchMs = 0.002;  // the latter of clusters that share enough keys
constexpr double kClusterCycles = 3500, kPieceCycles = 35;    // wgmma: of several clusters with one tile
// wgmma, of CTAs with even shares: becoming one with the other sharers, under a mask too; and what they lose,
// of a tile, that are each at other keys.
constexpr double kJoinCycles = 1600, kSharerCycles = 1400, kJoinPerValue = 0.35, kMaskedJoinCycles = 6000;
constexpr double kOutOfStep = 0.06;

// Rows as tiles see them: 2^packed places for a query. A cluster's tile ends where its last row does; a CTA's
// own rows, which are dealt, end so many sooner in the mean, and it computes nothing for what these do not
// see.
struct Tiled {
  Shape shape;
  int packed = 0, sooner = 0;
};

// Blocks of keys that rows of a tile see.
std::int64_t blocks_of_tile(const Problem& problem, const Tiled& tiled, std::int64_t tile, int tile_m,
                            int tile_n) {
  const auto& [shape, packed, sooner] = tiled;
  std::int64_t keys = shape.seqlen_k;
  if (problem.causal) {
    const std::int64_t end = std::min<std::int64_t>((tile + 1) * tile_m - sooner, shape.seqlen_q);
    const std::int64_t last = (end - 1) >> packed;
    const int queries = shape.seqlen_q >> packed;
    keys = std::clamp<std::int64_t>(last + 1 + shape.seqlen_k - queries, 0, shape.seqlen_k);
  }
  return (keys + tile_n - 1) / tile_n;
}

// Steps of all tiles of one head, and of the longest, whose keys `splits` CTAs share out. Of very many tiles
// a few thousand stand for all.
struct Steps {
  double total = 0, longest = 0, tiles = 0;
};
Steps steps_of(const Problem& problem, const Tiled& tiled, int tile_m, int tile_n, int splits) {
  constexpr std::int64_t kLookedAt = 4096;
  const std::int64_t tiles = (static_cast<std::int64_t>(tiled.shape.seqlen_q) + tile_m - 1) / tile_m;
  const std::int64_t stride = (tiles + kLookedAt - 1) / kLookedAt;
  Steps steps{.tiles = static_cast<double>(tiles)};
  for (std::int64_t tile = 0; tile < tiles; tile += stride) {
    const std::int64_t blocks = blocks_of_tile(problem, tiled, tile, tile_m, tile_n);
    const std::int64_t longest_share = (blocks + splits - 1) / splits;
    const auto count = static_cast<double>(longest_share);
    steps.total += count * static_cast<double>(std::min(stride, tiles - tile));
    steps.longest = std::max(steps.longest, count);
  }
  return steps;
}

// Clusters that run side by side, a CTA on each multiprocessor. Those of a cluster are neighbours, in groups
// of which some have no multiple of them: what cuOccupancyMaxActiveClusters says of an H200's 132.
int clusters_at_once(const Target& target, int ctas) {
  constexpr int kOfH200[] = {132, 66, 39, 30, 22, 17, 15, 15};
  return kOfH200[ctas - 1] * target.sm_count / kOfH200[0];
}

// The order in which tiles of the second wave are drawn (templates/parts/wgmma/tickets.cuh, riffle).
void riffle(std::vector<double>& lengths, int workers) {
  const int riffled = riffled_tiles(static_cast<double>(lengths.size()), workers);
  if (riffled == 0) return;
  const std::vector<double> wave(lengths.begin() + workers, lengths.begin() + workers + riffled);
  for (int place = 0; place < riffled; ++place)
    lengths[workers + place] = wave[place / 2 + place % 2 * ((riffled + 1) / 2)];
}

// Cycles until all tiles of a masked problem are done that multiprocessors take off a counter, the longest
// first. Of long sequences some tiles stand for their neighbours, and many waves end as one.
double drawn_cycles(const Problem& problem, const Tiled& tiled, int tile_m, int tile_n, const Step& step,
                    int workers, double waves, double mean_tile) {
  constexpr std::int64_t kLookedAt = 64;
  constexpr double kManyWaves = 8;
  if (waves > kManyWaves) return mean_tile * (waves + 0.05);
  const Shape& shape = tiled.shape;
  const std::int64_t tiles = (static_cast<std::int64_t>(shape.seqlen_q) + tile_m - 1) / tile_m;
  const std::int64_t heads = static_cast<std::int64_t>(shape.heads) * shape.batch;
  const std::int64_t stride = (tiles + kLookedAt - 1) / kLookedAt;
  std::vector<double> lengths;
  for (std::int64_t tile = tiles - 1; tile >= 0; tile -= stride) {
    const std::int64_t middle = std::max<std::int64_t>(0, tile - stride / 2);
    const auto blocks = static_cast<double>(blocks_of_tile(problem, tiled, middle, tile_m, tile_n));
    lengths.insert(lengths.end(), heads * std::min(stride, tile + 1),
                   blocks * step.cycles + step.tile_cycles);
  }
  riffle(lengths, workers);
  return makespan(lengths, workers);
}

// What `splits` CTAs that share out a tile's keys spend on becoming one: barriers, and O of `rows` rows, 20
// bytes a clock; and several clusters of them, one of whose warps reads what each has of some columns.
double merge_cycles(int splits, int clusters, double rows, int dim_v) {
  if (splits == 1) return 0;
  const double pieces = 1 + std::ceil(dim_v / 8.0 / splits);
  return 1000 + (50 + 2 * rows) * splits + rows * dim_v * 4 / 20 +
         (clusters == 1 ? 0 : kClusterCycles + kPieceCycles * clusters * pieces);
}

// What a CTA spends on becoming one with the others that have a share of its tiles: it puts down one, and
// adds up another, for which it reads what each of them knows.
double join_cycles(double sharers, double rows, int dim_v) {
  return kJoinCycles + kSharerCycles * std::max(0.0, sharers - 2) + kJoinPerValue * rows * dim_v;
}

// How much longer even shares of masked tiles take where each has so many: those side by side are of as many
// heads, whose K and V L2 cannot hold. Of 39 timings with 3.9 to 25 tiles a share, tiles off a counter, which
// come section by section, were 3 to 118 % faster in each (docs/performance/wgmma/even-shares.md).
double far_apart(double tiles_of_share) {
  return 1 + 0.04 * std::clamp(tiles_of_share - 3, 0.0, 5.0);
}

// Milliseconds of two things that run side by side.
double overlapped(double one, double other) {
  return std::max(one, other) + 0.05 * std::min(one, other);
}

}  // namespace

double predict(const Problem& problem, const Shape& shape, const Schedule& schedule, const Target& target) {
  if (problem.pass == Pass::backward) return predict_backward(problem, shape, schedule, target);
  const Machine& machine = machine_of(target);
  // A tile takes as many multiprocessors as its cluster has CTAs.
  const auto* wgmma = std::get_if<WgmmaSchedule>(&schedule);
  const int splits = wgmma != nullptr ? wgmma->splits : 1;
  const int cluster = wgmma != nullptr ? wgmma->cluster : 1;
  const int rows = rows_of_tile(schedule);
  // Rows of several heads may fill a tile. Of few queries they see about all keys, of a single one all.
  const Pack pack = pack_of(problem, shape, schedule);
  const int packed = pack.packed;
  const Shape tiled = as_tiled(shape, pack);
  Problem seen = problem;
  seen.causal = problem.causal && (packed == 0 ? shape.seqlen_q > 1 : tiled.seqlen_q > rows);
  const Step step = step_of(seen, schedule, target, machine);
  const int at_once = std::max(1, clusters_at_once(target, cluster * splits));
  const int clusters = splits == 1 ? 1 : clusters_of_tile(geometry_wgmma(problem, *wgmma), tiled, at_once);
  const Tiled of_rows{.shape = tiled, .packed = packed, .sooner = rows / 2 * (cluster - 1) / cluster};
  const Steps steps = steps_of(seen, of_rows, rows, get(schedule, "tile_n"), splits * clusters);
  const double tiles = steps.tiles * tiled.heads * tiled.batch;
  if (tiles == 0) return kLaunchMs;
  const int tiles_at_once = at_once / clusters;
  const double waves = tiles / tiles_at_once;

  // With few tiles a multiprocessor holds fewer CTAs than it could: what one adds to another's step is less
  // and less.
  const double filled = std::clamp(waves, 1.0, static_cast<double>(step.ctas));
  const double blend = step.ctas > 1 ? (1 - 1 / filled) / (1 - 1.0 / step.ctas) : 1;
  const bool own_keys = wgmma != nullptr && steps.tiles == 1 && !seen.causal;
  const double alone = own_keys ? step.own_keys : step.alone;
  const double step_cycles = own_keys ? alone : alone + blend * (step.cycles - alone);
  const double blocks_cycles = steps.total / steps.tiles * step_cycles;
  const double longest_cycles = steps.longest * step_cycles;
  const auto ms = [&](double cycles) { return cycles / (machine.clock_ghz * 1e6); };
  double memory_ms = step.over_fetch * bytes_of(problem, shape) / memory_rate(target);
  double apart = 1;  // how much longer memory takes where two tiles of a head read the same keys apart
  if (wgmma != nullptr && steps.tiles == 1) {
    const bool even = step.dealt && !seen.causal;
    const double of_all =
        (even ? static_cast<double>(even_waves(std::llround(tiles), tiles_at_once)) * cluster
              : tiles * clusters * splits) /
        target.sm_count;
    memory_ms = served_ms(problem, shape, *wgmma,
                          {.multiprocessors = target.sm_count,
                           .of_all = of_all,
                           .ctas = step.ctas,
                           .waves = waves,
                           .blocks = steps.longest,
                           .alone_ms = ms(steps.longest * alone + step.tile_cycles),
                           .even = even},
                          memory_ms);
  } else if (wgmma != nullptr && steps.tiles == 2 && splits == 1 && !seen.causal) {
    apart = over_fetch(problem, shape, apart_of_two(problem, *wgmma));
    memory_ms *= apart;
  } else if (std::holds_alternative<MmaSchedule>(schedule) && steps.tiles == 1 && steps.longest > kLongTile) {
    memory_ms *= over_fetch(problem, shape, kSeveralApart);
  }
  if (splits > 1) {
    // Nothing hides a tile's beginning and end, but that others read meanwhile. Few tiles leave power enough
    // for the highest clock, which warpgroups feel that wait for nothing else. And in several waves small
    // clusters read faster: large ones wait until a whole group of multiprocessors has room.
    const double clock = !seen.causal && waves <= 1 && tiled.seqlen_q > 64 && rows > 64 ? 1 / 0.85 : 1;
    const double slower = waves <= 1 || splits == 2 ? 1 : splits == 3 ? 1.14 : 1.18;
    const double bare = step.tile_cycles +
                        merge_cycles(splits, clusters, std::min(rows, tiled.seqlen_q), problem.value_dim());
    const double cycles = seen.causal ? std::max(longest_cycles, waves * blocks_cycles + 0.3 * longest_cycles)
                                      : std::ceil(waves) * blocks_cycles;
    // Beside memory: of tiles with keys of their own all ends but one wave's.
    const double hidden = steps.tiles == 1 ? std::ceil(waves) - 1 : 0, shown = std::ceil(waves) - hidden;
    const bool enough = shape.seqlen_k >= 64 * splits * clusters;
    return overlapped(ms((cycles + hidden * bare) / clock), memory_ms * slower) + ms(shown * bare) +
           (enough ? kSharedLaunchMs : kLaunchMs);
  }
  if (wgmma != nullptr && wgmma->persistent == 3) {
    const EvenShares shares =
        even_shares(problem, geometry_wgmma(problem, *wgmma), tiled, packed, at_once * step.ctas);
    if (shares.tiles > 0) {
      const double of_share = tiles / shares.clusters;
      // Measured at head_dim 64: blocks of 128 keys divide less well.
      const double coarse = problem.value_dim() <= 64 && wgmma->tile_n > 64 ? 1.08 : 1;
      // Under a mask a tile's beginning and end count as a step, and steps take a little less than elsewhere
      // (measured).
      const double even = seen.causal
                              ? 0.95 * far_apart(of_share) *
                                    (of_share * (blocks_cycles + step_cycles) + kOutOfStep * longest_cycles)
                              : (of_share + kOutOfStep) * blocks_cycles;
      const double ends = seen.causal ? 1 : 1 + std::ceil(of_share);
      const double bare = ends * step.tile_cycles + (seen.causal ? kMaskedJoinCycles : 0) +
                          join_cycles(1 + 1.0 * shares.clusters / shares.tiles,
                                      std::min(rows, tiled.seqlen_q), problem.value_dim());
      // A tile's first blocks are waited for by all of its sharers.
      const bool all_shared = steps.tiles == 1 && tiles < shares.clusters;
      const double slower = all_shared         ? 1.06 * over_fetch(problem, shape, 1)
                            : steps.tiles == 1 ? over_fetch(problem, shape, apart_of(*wgmma, 1))
                                               : apart;
      // Packs of the heads that share K and V are shares apart, too.
      const bool packs_apart = steps.tiles == 1 && tiled.heads > shape.kv_heads();
      const double bytes = std::max(
          bytes_of(problem, shape),
          seen.causal || packs_apart
              ? missed_bytes(problem, shape, tiles * blocks_cycles / step_cycles * wgmma->tile_n / cluster)
              : 0.0);
      return overlapped(ms(coarse * even), bytes / memory_rate(target) * slower) + ms(bare) + kLaunchMs;
    }
  }
  const double mean_tile = blocks_cycles + step.tile_cycles;
  double cycles = mean_tile * waves;
  if (seen.causal && step.balanced) {
    const auto drawn = [&](const Step& of_tile, int workers, double mean) {
      return drawn_cycles(seen, of_rows, rows, get(schedule, "tile_n"), of_tile, workers, tiles / workers,
                          mean);
    };
    cycles = drawn(step, tiles_at_once, mean_tile);
    if (wgmma != nullptr && step.ctas > 1) {
      // A tile by itself: slower than those that share the multiprocessor are together, faster than each.
      Step one = step;
      one.cycles = (alone + step.ctas * step.cycles) / 2;
      one.tile_cycles *= step.ctas;
      cycles = std::max(cycles, drawn(one, tiles_at_once * step.ctas, mean_tile * one.cycles / step.cycles));
    }
  } else if (seen.causal && step.dealt) {
    // Measured: a CTA's tiles are often all long or all short.
    cycles = std::max(1.22 * cycles, waves > 1 ? 1.7 * longest_cycles : 0);
  } else if (seen.causal) {
    cycles += 0.6 * longest_cycles;
  } else {
    // Each of several CTAs on a multiprocessor has as many tiles as the others, or one less.
    const double share = step.dealt && waves > step.ctas ? step.ctas : 1;
    cycles = mean_tile * std::ceil(waves / share) * share;
  }
  const double bare = step.tile_cycles * (wgmma != nullptr ? step.ctas : 1);
  cycles = std::max(cycles, steps.longest * alone + bare);
  if (waves <= step.ctas) cycles += step.start_cycles;  // which nothing hides
  return overlapped(ms(cycles), memory_ms) + kLaunchMs;
}

}  // namespace flashjit::autotune
