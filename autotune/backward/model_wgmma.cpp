#include "autotune/backward/model_wgmma.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "autotune/backward/backward.hpp"
#include "autotune/model/makespan.hpp"
#include "autotune/model/memory.hpp"
#include "generator/families/wgmma_backward_layout.hpp"
#include "generator/sections.hpp"
#include "generator/splits.hpp"

namespace flashjit::autotune {
namespace {

constexpr double kClockGhz = 1.6;

// Below 64 columns exponentials take most of the time, and there are as many as for 64. Head_dim 40 has 0.69
// of the rate of 64.
double narrower(const Problem& problem) {
  return std::min(1.0, std::pow((problem.head_dim + problem.value_dim()) / 128.0, 0.8));
}

// Of ways other than units_ms, as timed on an H200 at 1k to 16k (docs/performance/wgmma-backward.md).
double flops_per_clock(const Problem& problem, const Shape& shape, const WgmmaBackwardSchedule& s) {
  const auto way = static_cast<DqWay>(s.dq);
  const bool own_pass = way == DqWay::own_pass;
  const bool narrow = std::max(problem.head_dim, problem.value_dim()) <= 64;
  const bool wide = std::max(problem.head_dim, problem.value_dim()) > 128;
  double rate = own_pass ? (narrow ? 2600 : 2950) : narrow ? 2450 : 2800;
  if (wide && !own_pass) rate = wgmma_backward::stages_dq(problem, s) ? 3000 : 2400;  // pairs of CTAs
  if (narrow && s.tile_m == 64) rate *= 0.9;
  if (!wide && s.tile_n == 64) rate *= narrow ? 0.8 : 0.95;
  if (s.turns > 0) rate *= own_pass && !(narrow && problem.causal) ? 1.05 : narrow ? 1.02 : 0.995;
  if (s.tile_m == 80) rate *= 1.04;  // fewer waits per query
  // Tiles wait for each other's turns.
  if (way == DqWay::ordered) rate *= problem.causal && shape.seqlen_k < 2048 ? 0.93 : 0.88;
  // Half of the work of tiles on the diagonal is in vain.
  if (problem.causal) rate /= 1 + 0.5 * (s.tile_m + s.tile_n) / std::max(s.tile_n, shape.seqlen_k);
  return rate * narrower(problem);
}

// Of a tile of keys, or a part of its queries, beside the steps along these, where a multiprocessor has so
// many.
double tile_us(const Problem& problem, const WgmmaBackwardSchedule& s, double tiles) {
  constexpr double kAddedUs = 0.0128, kLateUs = 5, kLateStagedUs = 2.8, kLatePartUs = 0.8;
  const int d = problem.head_dim, dv = problem.value_dim();
  double us = std::max(d, dv) <= 64 ? 3.8 : 2.3;
  // K and V of the next one. Beside narrow values they have room, and beside wide ones they never had.
  if (s.tile_m == 80 && tiles > 1) us += kLateUs;
  if (s.staged > 0 && tiles > 1 && wgmma::panels_of(dv) == 2)
    us += s.splits > 1 ? kLatePartUs : kLateStagedUs;
  if (s.splits > 1) us += kAddedUs * (d + dv);  // shares of dV and dK
  return us;
}

double waves_ms(const Problem& problem, const Shape& shape, const WgmmaBackwardSchedule& s,
                const Target& target) {
  constexpr double kLongestLast = 1.2;  // tiles: by a simulation, and as timed with eight heads of keys
  const bool own_pass = s.dq == static_cast<int>(DqWay::own_pass);
  const double sms = std::max(1, target.sm_count);
  const double ctas = std::ceil(1.0 * shape.seqlen_k / s.tile_n) * shape.kv_heads() * shape.batch;
  const double tiles = ctas / sms;  // of a multiprocessor
  double waves = std::ceil(tiles) / tiles;
  if (problem.causal) waves = std::max(waves, 2 / tiles);  // the longest tile takes twice the mean
  // In a fixed order a head's longest tile comes last. The rates are of problems with 15.5 tiles.
  if (problem.causal && s.dq == static_cast<int>(DqWay::ordered))
    waves = (1 + kLongestLast / tiles) / (1 + kLongestLast / 15.5);
  // Five products in one pass; where dQ has a pass of its own, four in the first and three in the second,
  // whose tiles are of queries.
  const double products = own_pass ? (4 * waves + 3) / 5 : waves;
  const double work = flops(problem, shape) * filled_up(shape, s.tile_m, s.tile_n);
  const double loops_ms = work / sms * products / (flops_per_clock(problem, shape, s) * kClockGhz * 1e6);
  return loops_ms + std::ceil(tiles) * tile_us(problem, s, tiles) / 1e3;
}

// One pass in which CTAs add up dQ in any order is drawn unit by unit: a tile of keys, with all queries that
// see it or a part of them. The figures are fitted to 260 timings of 62 shapes on an H200, those of staged dQ
// to 127 of 36, and are 5 % off in the mean (docs/performance/wgmma-backward.md#parts-of-a-tiles-queries,
// docs/performance/wgmma-backward/shares.md#64-queries-by-choice).
struct Units {
  long long pairs;         // (batch, head) pairs that have tiles, times parts
  long long tiles;         // of a pair
  long long steps;         // along a head's queries
  int heads;               // that a unit meets
  int row_parts;           // of each head's rows
  Sections sections = {};  // of pairs
};

Units units_of(const Problem& problem, const Shape& shape, const WgmmaBackwardSchedule& s, long long sms) {
  constexpr double kMostPairs = 1U << 31;  // no launch may have as many tiles
  const QuerySplits splits = query_splits(problem, shape, s.splits, s.tile_m);
  const double pairs = 1.0 * shape.batch * shape.kv_heads() * splits.parts();
  Units units{.pairs = static_cast<long long>(std::min(pairs, kMostPairs)),
              .tiles = (shape.seqlen_k - 1LL) / s.tile_n + 1,
              .steps = (shape.seqlen_q - 1LL) / s.tile_m + 1,
              .heads = shape.heads / shape.kv_heads() / splits.heads,
              .row_parts = splits.rows};
  units.sections = sections_at_once(units.pairs, units.tiles, units.heads, sms);
  return units;
}

// Under a mask, tiles that meet several query heads drift apart, since they differ in length. What they read
// and add then comes from memory again, as far as the heads that are under way do not fit into L2.
double drift(const Problem& problem, const Shape& shape, const Units& units, long long sms) {
  constexpr double kHeld = 16e6, kRange = 100e6, kMost = 2, kWeight = 0.18;
  constexpr int kSpread = 64;  // tiles: these are spread, so that drift matters less
  const long long at_work = std::max(units.sections.pairs, std::min(units.pairs, sms / units.tiles));
  const double row_bytes = 2.0 * (problem.head_dim + problem.value_dim()) + 4.0 * problem.head_dim;
  const double bytes = static_cast<double>(at_work * units.heads) * shape.seqlen_q * row_bytes;
  return 1 + kWeight * std::clamp((bytes - kHeld) / kRange, 0.0, kMost) * (units.tiles >= kSpread ? 0.5 : 1);
}

double step_us(const Problem& problem, const WgmmaBackwardSchedule& s) {
  const int d = problem.head_dim, dv = problem.value_dim();
  const bool narrow = std::max(d, dv) <= 64;
  double flops_per_clock = narrow ? 2940 : 3260;
  flops_per_clock *= narrower(problem);
  // 80 queries a step wait less often for each.
  if (s.tile_m == 80) flops_per_clock *= !problem.causal ? 1.08 : s.turns > 0 ? 1.05 : 1.03;
  if (s.staged > 0) flops_per_clock *= wgmma_backward::forms_ds_under_dv(problem, s) ? 1.056 : 1.04;
  if (s.turns > 0)
    flops_per_clock *= narrow ? 1.06 : s.staged > 0 ? 0.98 : s.splits > 1 ? 1.005 : s.tile_m == 80 ? 1 : 0.98;
  return 2.0 * s.tile_m * s.tile_n * (3 * d + 2 * dv) / (flops_per_clock * kClockGhz * 1e3);
}

double units_ms(const Problem& problem, const Shape& shape, const WgmmaBackwardSchedule& s,
                const Target& target) {
  constexpr long long kManyWaves = 16;  // which end about evenly
  const long long sms = std::max(1, target.sm_count);
  const Units units = units_of(problem, shape, s, sms);
  const long long count = units.pairs * units.tiles;
  const double each = tile_us(problem, s, static_cast<double>(count) / static_cast<double>(sms));
  double step = step_us(problem, s);
  if (!problem.causal) {
    const double steps = static_cast<double>(units.heads * units.steps) / units.row_parts;
    const double waves = wgmma_backward::divides_tiles(problem, s)
                             ? divided_tiles(count, units.heads, static_cast<int>(units.steps), sms).waves
                             : std::ceil(static_cast<double>(count) / static_cast<double>(sms));
    return waves * (steps * step + each) / 1e3;
  }

  constexpr double kSeveralHeads = 1.05, kSeveralHeadsStaged = 1.02;  // in a part
  step *= drift(problem, shape, units, sms);
  if (s.splits > 1 && units.heads > 1) step *= s.staged > 0 ? kSeveralHeadsStaged : kSeveralHeads;
  const auto length = [&](long long tile) {
    const long long first = std::max(0LL, tile * s.tile_n - (shape.seqlen_k - shape.seqlen_q)) / s.tile_m;
    return static_cast<double>(units.heads * std::max(0LL, units.steps - first)) * step + each;
  };
  if (count > kManyWaves * sms) {
    double us = 0;
    for (long long tile = 0; tile < units.tiles; ++tile) us += length(tile);
    return us * static_cast<double>(units.pairs) / static_cast<double>(sms) / 1e3;
  }
  std::vector<double> lengths;
  lengths.reserve(static_cast<std::size_t>(count));
  for (long long pair = 0; pair < units.pairs; pair += units.sections.pairs) {
    const long long of_section = std::min<long long>(units.sections.pairs, units.pairs - pair);
    for (long long tile = 0; tile < units.tiles; ++tile)
      lengths.insert(lengths.end(), static_cast<std::size_t>(of_section), length(tile));
  }
  return makespan(lengths, static_cast<int>(sms)) / 1e3;
}

// Sums of dV and dK are cleared before; after, part of dQ's sums become dQ, or Q and dO are read again for
// it.
double around_ms(const Problem& problem, const Shape& shape, const WgmmaBackwardSchedule& s,
                 const Target& target) {
  constexpr double kAfter = 0.65, kOtherPassMs = 0.012;
  double bytes = kAfter * 6 * problem.head_dim * shape.batch * shape.heads * shape.seqlen_q;
  if (s.splits > 1) {
    bytes += 4.0 * shape.batch * shape.kv_heads() * shape.seqlen_k * (problem.head_dim + problem.value_dim());
  }
  const double other_pass = s.dq == static_cast<int>(DqWay::own_pass) ? kOtherPassMs : 0;
  return bytes / memory_rate(target) + other_pass;
}

}  // namespace

double wgmma_ms(const Problem& problem, const Shape& shape, const WgmmaBackwardSchedule& s,
                const Target& target) {
  const bool whole_ctas = s.dq != static_cast<int>(DqWay::own_pass) && s.tile_n == 128;
  double ms = whole_ctas ? units_ms(problem, shape, s, target) : 0;
  // An order costs waits.
  if (!whole_ctas || s.dq == static_cast<int>(DqWay::ordered))
    ms = std::max(ms, waves_ms(problem, shape, s, target));
  return ms + around_ms(problem, shape, s, target);
}

}  // namespace flashjit::autotune
