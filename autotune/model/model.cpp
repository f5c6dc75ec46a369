// The analytic model: how tiles of so many steps (step.hpp) fill the GPU.
//
// It is there to rank: which schedules deserve a compile, and which one to run when nobody measured.
#include <algorithm>
#include <cmath>

#include "autotune/backward/backward.hpp"
#include "autotune/model/makespan.hpp"
#include "autotune/model/memory.hpp"
#include "autotune/model/step.hpp"
#include "autotune/model/tiling.hpp"
#include "autotune/tune.hpp"
#include "generator/recipe.hpp"
#include "generator/render.hpp"
#include "generator/sections.hpp"

namespace flashjit::autotune {
namespace {

constexpr double kLaunchMs = 0.004;
constexpr double kMmaLaunchMs = 0.0032;  // without maps to fetch; measured for mma
// Launches of clusters that share out a tile's keys; the second where shares are long.
constexpr double kSharesLaunchMs = 0.0045, kLongSharesLaunchMs = 0.0025;
constexpr double kEvenSharesMs = 0.0015, kMaskedSharesMs = 0.0007;  // added, with several warpgroups
constexpr double kStaggeredMs = 0.004;  // a second wave of clusters after tiles of several lengths
constexpr double kClusterCycles = 3500, kPieceCycles = 35;  // wgmma: several clusters with one tile
// wgmma, CTAs with even shares: merging with the other sharers, and what a mask adds to this; and the part of
// a tile that is lost because each CTA is at other keys.
constexpr double kJoinCycles = 1600, kSharerCycles = 1400, kJoinPerValue = 0.35, kMaskedJoinCycles = 6000;
constexpr double kOutOfStep = 0.06;

// The order in which tiles of the second wave are drawn (templates/parts/wgmma/tickets.cuh, riffle).
void riffle(std::vector<double>& lengths, int workers) {
  const int riffled = riffled_tiles(static_cast<double>(lengths.size()), workers);
  if (riffled == 0) return;
  const std::vector<double> wave(lengths.begin() + workers, lengths.begin() + workers + riffled);
  for (int place = 0; place < riffled; ++place)
    lengths[workers + place] = wave[place / 2 + place % 2 * ((riffled + 1) / 2)];
}

// Cycles until `workers` have done all tiles of a masked problem, which they take off a counter, longest
// first. In long sequences some tiles stand for their neighbours. With many waves all workers end at about
// the same time.
double drawn_cycles(const Tiling& tiling, const Step& step, int section_bytes, int workers,
                    double mean_tile) {
  constexpr std::int64_t kLookedAt = 64;
  constexpr double kManyWaves = 8;
  const double waves = tiling.tiles / workers;
  if (waves > kManyWaves) return mean_tile * (waves + 0.05);
  const auto tiles = static_cast<std::int64_t>(tiling.steps.tiles);
  const std::int64_t heads = static_cast<std::int64_t>(tiling.shape.heads) * tiling.shape.batch;
  const std::int64_t stride = (tiles + kLookedAt - 1) / kLookedAt;
  std::vector<double> lengths;
  for (std::int64_t tile = tiles - 1; tile >= 0; tile -= stride) {
    const std::int64_t middle = std::max<std::int64_t>(0, tile - stride / 2);
    lengths.insert(lengths.end(), heads * std::min(stride, tile + 1),
                   static_cast<double>(blocks_of_tile(tiling, middle)) * step.cycles + step.tile_cycles);
  }
  // As the launch does (api/launch/launcher.cpp).
  const bool one_section = sections_of(tiling.seen, tiling.shape, tiles, section_bytes, workers).last == 0;
  if (section_bytes > 0 && one_section) riffle(lengths, workers);
  return makespan(lengths, workers);
}

// Cycles that `splits` CTAs that share out a tile's keys spend on merging: barriers, and O of `rows` rows at
// 20 bytes a clock. With several clusters, a warp of one of them also reads each cluster's pieces of some
// columns.
double merge_cycles(int splits, int clusters, double rows, int dim_v) {
  if (splits == 1) return 0;
  const double pieces = 1 + std::ceil(dim_v / 8.0 / splits);
  return 1000 + (50 + 2 * rows) * splits + rows * dim_v * 4 / 20 +
         (clusters == 1 ? 0 : kClusterCycles + kPieceCycles * clusters * pieces);
}

// Cycles that a CTA spends on merging with the others that have a share of its tiles: it puts down its pieces
// of one tile and adds up another tile, for which it reads the pieces of each sharer.
double join_cycles(double sharers, double rows, int dim_v) {
  return kJoinCycles + kSharerCycles * std::max(0.0, sharers - 2) + kJoinPerValue * rows * dim_v;
}

// How much longer even shares of masked tiles take where each share has many tiles: shares that run side by
// side are then of as many different heads, whose K and V L2 cannot hold. In each of 39 timings with 3.9 to
// 25 tiles a share, tiles off a counter, which come section by section, were 3 to 118 % faster
// (docs/performance/wgmma/even-shares.md).
double far_apart(double tiles_of_share) {
  return 1 + 0.04 * std::clamp(tiles_of_share - 3, 0.0, 5.0);
}

// Milliseconds of two things that run side by side.
double overlapped(double one, double other) {
  return std::max(one, other) + 0.05 * std::min(one, other);
}

// What the ways to share out work have in common.
struct Work {
  const Problem& problem;
  const Shape& shape;
  const Tiling& tiling;
  const Step& step;
  const Target& target;
  double clock_ghz;
  double step_cycles;    // of one step of a tile
  double memory_ms = 0;  // until memory has served all tiles
  double apart = 1;      // factor on memory's time where two tiles of a head read the same keys apart

  double ms(double cycles) const { return cycles / (clock_ghz * 1e6); }
  double blocks_cycles() const { return tiling.steps.total / tiling.steps.tiles * step_cycles; }
  double longest_cycles() const { return tiling.steps.longest * step_cycles; }
  int rows() const { return std::min(tiling.rows, tiling.shape.seqlen_q); }
  bool lone_tile() const { return tiling.steps.tiles == 1; }  // one per head, whose keys no other tile reads
};

// Family wgmma's schedule, where it loads by TMA: in 16 bits.
const WgmmaSchedule* by_tma(const Problem& problem, const Schedule& schedule) {
  return problem.dtype == DType::fp32 ? nullptr : std::get_if<WgmmaSchedule>(&schedule);
}

// How long memory takes to serve all tiles, each of which takes `tile_cycles` by itself.
void wait_for_memory(Work& work, const Schedule& schedule, double tile_cycles) {
  const Problem& problem = work.problem;
  const Shape& shape = work.shape;
  const Tiling& tiling = work.tiling;
  const auto* wgmma = by_tma(problem, schedule);
  const double tiles_of_head = tiling.steps.tiles;
  const bool whole = tiling.splits == 1 && !tiling.seen.causal;
  const bool in_blocks = wgmma != nullptr && tiles_of_head <= 2 && whole;
  const double bytes = in_blocks ? bytes_in_blocks(problem, shape, tiling.tile_n) : bytes_of(problem, shape);
  work.memory_ms = work.step.over_fetch * bytes / memory_rate(work.target);
  if (wgmma == nullptr) {
    const bool long_tiles = tiles_of_head == 1 && tiling.steps.longest > kLongTile;
    if (long_tiles && std::holds_alternative<MmaSchedule>(schedule))
      work.memory_ms *= over_fetch(problem, shape, kSeveralApart);
    return;
  }
  const bool even = work.step.dealt && !tiling.seen.causal;
  const double busy =
      even
          ? static_cast<double>(even_waves(std::llround(tiling.tiles), tiling.tiles_at_once)) * tiling.cluster
          : tiling.tiles * tiling.clusters * tiling.splits;
  const bool as_many_queries = tiling.packed == 0 && 2LL * shape.seqlen_q >= shape.seqlen_k;
  const ReadingTiles tiles{.multiprocessors = work.target.sm_count,
                           .of_all = busy / work.target.sm_count,
                           .ctas = work.step.ctas,
                           .waves = tiling.waves,
                           .blocks = tiling.steps.longest,
                           .alone_ms = work.ms(tile_cycles),
                           .even = even,
                           .half_empty = as_many_queries && 2 * work.rows() <= tiling.rows};
  if (tiles_of_head == 1) {
    work.memory_ms = served_ms(problem, shape, *wgmma, tiles, work.memory_ms);
  } else if (tiles_of_head == 2 && whole) {
    work.apart = over_fetch(problem, shape, apart_of_two(problem, *wgmma));
    work.memory_ms = in_turn_ms(problem, *wgmma, tiles, work.memory_ms * work.apart);
  }
}

// Clusters whose CTAs share out a tile's keys.
double shared_out_ms(const Work& work) {
  const Tiling& tiling = work.tiling;
  const Step& step = work.step;
  const bool causal = tiling.seen.causal;
  // Nothing hides a tile's beginning and end, except that others read meanwhile. Few tiles of many keys leave
  // power enough for the highest clock, which speeds up warpgroups that wait for nothing else. And in several
  // waves small clusters read faster: large ones wait until a whole group of multiprocessors has room.
  constexpr int kLongShare = 1024;
  const bool feels_clock =
      tiling.shape.seqlen_q > 64 && tiling.rows > 64 && work.shape.seqlen_k >= kLongShare * tiling.splits;
  const double clock = !causal && tiling.waves <= 1 && feels_clock ? 1 / 0.85 : 1;
  const double slower = tiling.waves <= 1 || tiling.splits == 2 ? 1 : tiling.splits == 3 ? 1.14 : 1.18;
  const double bare =
      step.tile_cycles + merge_cycles(tiling.splits, tiling.clusters, work.rows(), work.problem.value_dim());
  const double waves = std::ceil(tiling.waves);
  const double cycles = causal ? std::max(work.longest_cycles(),
                                          tiling.waves * work.blocks_cycles() + 0.3 * work.longest_cycles())
                               : waves * work.blocks_cycles();
  // Where tiles have keys of their own, memory hides their beginnings and ends in all waves but one.
  const double hidden = work.lone_tile() ? waves - 1 : 0, shown = waves - hidden;
  const int share = tiling.rows > 64 ? kLongShare : 64;  // keys of a share that hide half of a launch
  const bool enough = work.shape.seqlen_k >= share * tiling.splits * tiling.clusters;
  // Tiles of several lengths end one by one, and a second wave's clusters wait until enough multiprocessors
  // are free; measured with 64 rows, not seen with more.
  const bool staggered = causal && waves > 1 && tiling.rows <= 64 && !work.lone_tile();
  return overlapped(work.ms((cycles + hidden * bare) / clock), work.memory_ms * slower) +
         work.ms(shown * bare) + (enough ? kLongSharesLaunchMs : kSharesLaunchMs) +
         (staggered ? kStaggeredMs : 0);
}

// CTAs with even shares of all tiles' keys.
double even_shares_ms(const Work& work, const WgmmaSchedule& schedule, const EvenShares& shares) {
  const Problem& problem = work.problem;
  const Shape& shape = work.shape;
  const Tiling& tiling = work.tiling;
  const Step& step = work.step;
  const bool causal = tiling.seen.causal;
  const double of_share = tiling.tiles / shares.clusters;
  // Measured at head_dim 64: blocks of 128 keys divide less well.
  const double coarse = problem.value_dim() <= 64 && schedule.tile_n > 64 ? 1.08 : 1;
  // Under a mask a tile's beginning and end count as a step, and steps take a little less than elsewhere
  // (measured).
  const double even =
      causal ? 0.95 * far_apart(of_share) *
                   (of_share * (work.blocks_cycles() + work.step_cycles) + kOutOfStep * work.longest_cycles())
             : (of_share + kOutOfStep) * work.blocks_cycles();
  const double ends = causal ? 1 : 1 + std::ceil(of_share);
  const double bare = ends * step.tile_cycles + (causal ? kMaskedJoinCycles : 0) +
                      join_cycles(1 + 1.0 * shares.clusters / shares.tiles, work.rows(), problem.value_dim());
  // All sharers of a tile wait for its first blocks.
  const bool all_shared = work.lone_tile() && tiling.tiles < shares.clusters;
  const double slower = all_shared         ? 1.06 * over_fetch(problem, shape, 1)
                        : work.lone_tile() ? over_fetch(problem, shape, apart_of(schedule, 1))
                                           : work.apart;
  // Packs of heads that share the same K and V are in shares apart, too.
  const bool packs_apart = work.lone_tile() && tiling.shape.heads > shape.kv_heads();
  const double bytes =
      std::max(bytes_of(problem, shape),
               causal || packs_apart ? missed_bytes(problem, shape,
                                                    tiling.tiles * work.blocks_cycles() / work.step_cycles *
                                                        schedule.tile_n / schedule.cluster)
                                     : 0.0);
  const double of_several = causal ? kMaskedSharesMs : kEvenSharesMs;
  const double launch = kLaunchMs + (tiling.rows > 64 ? of_several : 0);
  return overlapped(work.ms(coarse * even), bytes / memory_rate(work.target) * slower) + work.ms(bare) +
         launch;
}

// CTAs that have whole tiles: `alone` cycles a step where no other CTA shares the multiprocessor.
double whole_tiles_ms(const Work& work, double alone, const Schedule& schedule) {
  const auto* wgmma = std::get_if<WgmmaSchedule>(&schedule);
  const Tiling& tiling = work.tiling;
  const Step& step = work.step;
  const double waves = tiling.waves;
  const double mean_tile = work.blocks_cycles() + step.tile_cycles;
  double cycles = mean_tile * waves;
  if (tiling.seen.causal && step.balanced) {
    const int section_bytes = wgmma == nullptr ? 0 : wgmma->section << 20;
    cycles = drawn_cycles(tiling, step, section_bytes, tiling.tiles_at_once, mean_tile);
    if (wgmma != nullptr && step.ctas > 1) {
      // The pace of one tile: between that of a tile alone on the multiprocessor and that of one among
      // several.
      Step one = step;
      one.cycles = (alone + step.ctas * step.cycles) / 2;
      one.tile_cycles *= step.ctas;
      cycles = std::max(cycles, drawn_cycles(tiling, one, section_bytes, tiling.tiles_at_once * step.ctas,
                                             mean_tile * one.cycles / step.cycles));
    }
  } else if (tiling.seen.causal && step.dealt) {
    // Measured: a CTA's tiles are often all long or all short.
    cycles = std::max(1.22 * cycles, waves > 1 ? 1.7 * work.longest_cycles() : 0);
  } else if (tiling.seen.causal) {
    // Some wait for the longest tiles: the more these differ from the mean, the longer. Tiles of few queries
    // beside many keys are all as long, and fill up whole waves.
    const double uneven = 1.2 * (work.longest_cycles() - work.blocks_cycles());
    cycles = std::max(cycles + uneven, mean_tile * std::ceil(waves));
  } else {
    // Each of several CTAs on a multiprocessor has as many tiles as the others, or one less.
    const double share = step.dealt && waves > step.ctas ? step.ctas : 1;
    cycles = mean_tile * std::ceil(waves / share) * share;
  }
  const double bare = step.tile_cycles * (wgmma != nullptr ? step.ctas : 1);
  cycles = std::max(cycles, tiling.steps.longest * alone + bare);
  if (waves <= step.ctas) cycles += step.start_cycles;  // which nothing hides
  // Fitted to 32 to 4096 keys.
  constexpr double kMmaPower = 4;
  if (std::holds_alternative<MmaSchedule>(schedule))
    return side_by_side(work.ms(cycles), work.memory_ms, kMmaPower) + kMmaLaunchMs;
  const bool bare_launch = wgmma != nullptr && by_tma(work.problem, schedule) == nullptr;
  return overlapped(work.ms(cycles), work.memory_ms) + (bare_launch ? kMmaLaunchMs : kLaunchMs);
}

}  // namespace

double predict(const Problem& problem, const Shape& shape, const Schedule& schedule, const Target& target) {
  if (problem.pass == Pass::backward) return predict_backward(problem, shape, schedule, target);
  const Machine& machine = machine_of(target);
  const Tiling tiling = tiling_of(problem, shape, schedule, target);
  if (tiling.tiles == 0) return kLaunchMs;
  const Steps& steps = tiling.steps;
  const Step step = step_of(tiling.seen, schedule, target, machine, steps.longest);
  const auto* wgmma = std::get_if<WgmmaSchedule>(&schedule);
  const bool masked = tiling.seen.causal;

  // With few tiles a multiprocessor holds fewer CTAs than it could: the fewer, the less one adds to another's
  // step.
  const double filled = std::clamp(tiling.waves, 1.0, static_cast<double>(step.ctas));
  const double blend = step.ctas > 1 ? (1 - 1 / filled) / (1 - 1.0 / step.ctas) : 1;
  const bool own_keys = by_tma(problem, schedule) != nullptr && steps.tiles == 1 && !masked;
  const double alone = own_keys ? step.own_keys : step.alone;
  Work work{.problem = problem,
            .shape = shape,
            .tiling = tiling,
            .step = step,
            .target = target,
            .clock_ghz = machine.clock_ghz,
            .step_cycles = own_keys ? alone : alone + blend * (step.cycles - alone)};
  wait_for_memory(work, schedule, steps.longest * alone + step.tile_cycles);
  if (tiling.splits > 1) return shared_out_ms(work);
  if (wgmma != nullptr && wgmma->persistent == 3) {
    const EvenShares shares = even_shares(problem, geometry_wgmma(problem, *wgmma), tiling.shape,
                                          tiling.packed, tiling.at_once * step.ctas);
    if (shares.tiles > 0) return even_shares_ms(work, *wgmma, shares);
  }
  return whole_tiles_ms(work, alone, schedule);
}

}  // namespace flashjit::autotune
