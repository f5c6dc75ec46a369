#include "autotune/backward/model_wgmma.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "autotune/model/makespan.hpp"
#include "autotune/model/memory.hpp"
#include "generator/sections.hpp"
#include "generator/splits.hpp"

namespace flashjit::autotune {
namespace {

constexpr double kClockGhz = 1.6;

// Of every other way than units_ms, as timed on an H200 at 1k to 16k (docs/performance/wgmma-backward.md).
double wgmma_flops_per_clock(const Problem& problem, const Shape& shape, const WgmmaBackwardSchedule& s) {
  const auto way = static_cast<DqWay>(s.dq);
  const bool own_pass = way == DqWay::own_pass;
  const bool narrow = std::max(problem.head_dim, problem.value_dim()) <= 64;
  const bool wide = std::max(problem.head_dim, problem.value_dim()) > 128;
  double rate = own_pass ? (narrow ? 2600 : 2950) : narrow ? 2450 : 2800;
  if (wide && !own_pass) rate = 2400;  // pairs of CTAs
  if (narrow && s.tile_m == 64) rate *= 0.9;
  if (!wide && s.tile_n == 64) rate *= narrow ? 0.8 : 0.95;
  if (s.turns > 0) rate *= own_pass && !(narrow && problem.causal) ? 1.05 : narrow ? 1.02 : 0.995;
  // Fewer waits per query, but K and V of the next tile come late.
  if (s.tile_m == 80) rate *= way == DqWay::ordered ? 1.04 : shape.seqlen_q < 8192 ? 0.98 : 1.02;
  // Tiles wait for each other's turns.
  if (way == DqWay::ordered) rate *= problem.causal && shape.seqlen_k < 2048 ? 0.93 : 0.88;
  // Half of the work of tiles on the diagonal is in vain.
  if (problem.causal) rate /= 1 + 0.5 * (s.tile_m + s.tile_n) / std::max(s.tile_n, shape.seqlen_k);
  // Below 64 columns exponentials take most of the time, and there are as many as for 64.
  return rate * std::min(1.0, (problem.head_dim + problem.value_dim()) / 128.0);
}

// What one pass by whole CTAs that adds up dQ in any order costs, of tiles with up to 64 columns and of wider
// ones. Fitted to 220 timings of 52 shapes on an H200, 5 % off in the mean
// (docs/performance/wgmma-backward.md#parts-of-a-tiles-queries).
struct Rates {
  double flops_per_clock;  // in the loop over steps
  double turns;            // that factor more if warpgroups take turns
  double tile_us;          // of a tile, beside its steps
  double split_us;         // more, if its dV and dK are added up
};
constexpr Rates kNarrow{2940, 1.06, 3.8, 1.6}, kWide{3260, 1.0, 2.3, 3.3};
constexpr double kFewerWaits = 1.07;  // with 80 queries a step …
constexpr double kLateKeysUs = 1.7;   // … but K and V of the next tile come late

// Under a mask, tiles that meet several query heads drift apart, since they differ in length. What they read
// and add then comes from memory again, as far as the heads that are under way do not fit into L2.
double drift(const Problem& problem, const Shape& shape, long long tiles, long long heads) {
  constexpr double kHeld = 16e6, kRange = 100e6, kMost = 2, kWeight = 0.195;
  constexpr int kSpread = 64;  // tiles: these are spread, so that drift matters less
  const double row_bytes = 2.0 * (problem.head_dim + problem.value_dim()) + 4.0 * problem.head_dim;
  const double bytes = static_cast<double>(heads) * shape.seqlen_q * row_bytes;
  return 1 + kWeight * std::clamp((bytes - kHeld) / kRange, 0.0, kMost) * (tiles >= kSpread ? 0.5 : 1);
}

double units_ms(const Problem& problem, const Shape& shape, const WgmmaBackwardSchedule& s,
                const Target& target) {
  const long long d = problem.head_dim, dv = problem.value_dim();
  const long long sms = std::max(1, target.sm_count);
  const QuerySplits splits = query_splits(problem, shape, s.splits, s.tile_m);
  const int group = shape.heads / shape.kv_heads() / splits.heads;  // heads that a unit meets
  const long long steps = (shape.seqlen_q - 1LL) / s.tile_m + 1;
  const long long tiles = (shape.seqlen_k - 1LL) / s.tile_n + 1;
  const long long pairs = static_cast<long long>(shape.batch) * shape.kv_heads() * splits.parts();

  const Rates& rates = std::max(d, dv) <= 64 ? kNarrow : kWide;
  double rate = rates.flops_per_clock * (s.turns > 0 ? rates.turns : 1) * (s.tile_m == 80 ? kFewerWaits : 1);
  // Below 64 columns exponentials take most of the time, and there are as many as for 64.
  rate *= std::min(1.0, static_cast<double>(d + dv) / 128);
  double step_us = 2.0 * s.tile_m * s.tile_n * static_cast<double>(3 * d + 2 * dv) / (rate * kClockGhz * 1e3);
  const Sections sections = sections_at_once(pairs, tiles, group, sms);
  if (problem.causal) {
    constexpr double kSeveralHeads = 1.05;  // parts of several heads: measured
    step_us *= drift(problem, shape, tiles, std::max(sections.pairs, std::min(pairs, sms / tiles)) * group);
    if (splits.heads > 1 && group > 1) step_us *= kSeveralHeads;
  }
  const double unit_us =
      rates.tile_us + (s.tile_m == 80 ? kLateKeysUs : 0) +
      (s.splits > 1 ? rates.split_us * (rates.split_us > 2 ? static_cast<double>(d + dv) / 256 : 1) : 0);

  // Units of a section come longest first.
  const auto length = [&](long long tile) {
    const long long first = std::max(0LL, tile * s.tile_n - (shape.seqlen_k - shape.seqlen_q)) / s.tile_m;
    const long long seen = problem.causal ? std::max(0LL, steps - first) : steps;
    return static_cast<double>(group * seen) / splits.rows * step_us + unit_us;
  };
  constexpr long long kManyWaves = 16;  // which end about evenly
  double us = 0;
  if (!problem.causal) {
    const long long waves = (pairs * tiles - 1) / sms + 1;
    us = static_cast<double>(waves) * length(0);
  } else if (pairs * tiles > kManyWaves * sms) {
    for (long long tile = 0; tile < tiles; ++tile) us += length(tile) * static_cast<double>(pairs);
    us /= static_cast<double>(sms);
  } else {
    std::vector<double> lengths;
    lengths.reserve(static_cast<std::size_t>(pairs * tiles));
    for (long long pair = 0; pair < pairs; pair += sections.pairs) {
      const long long of_section = std::min<long long>(sections.pairs, pairs - pair);
      for (long long tile = 0; tile < tiles; ++tile)
        lengths.insert(lengths.end(), static_cast<std::size_t>(of_section), length(tile));
    }
    us = makespan(lengths, static_cast<int>(sms));
  }

  // Before: O and dO are read, and sums of dV and dK cleared. After: part of dQ's sums become dQ.
  constexpr double kAfter = 0.65, kOtherMs = 0.008;
  const double rows = 1.0 * shape.batch * shape.heads * shape.seqlen_q;
  double bytes = rows * (4.0 * dv + kAfter * 6.0 * d);
  if (s.splits > 1) bytes += 4.0 * shape.batch * shape.kv_heads() * shape.seqlen_k * (d + dv);
  return us / 1e3 + bytes / memory_rate(target) + kOtherMs;
}

}  // namespace

double wgmma_ms(const Problem& problem, const Shape& shape, const WgmmaBackwardSchedule& s,
                const Target& target) {
  if (static_cast<DqWay>(s.dq) == DqWay::atomic && s.tile_n == 128)
    return units_ms(problem, shape, s, target);
  constexpr double kLongestLast = 1.2;  // tiles: by a simulation, and as timed with eight heads of keys
  const double sms = std::max(1, target.sm_count);
  // Five products in one pass; seven where dQ has a pass of its own, which forms S and dP again.
  const double passes = s.dq == static_cast<int>(DqWay::own_pass) ? 7.0 / 5 : 1;
  const double ctas = std::ceil(1.0 * shape.seqlen_k / s.tile_n) * shape.kv_heads() * shape.batch;
  const double tiles = ctas / sms;  // of a multiprocessor
  double waves = std::ceil(tiles) / tiles;
  // In a fixed order a head's longest tile comes last. The rates are of problems with 15.5 tiles.
  if (problem.causal && s.dq == static_cast<int>(DqWay::ordered))
    waves = (1 + kLongestLast / tiles) / (1 + kLongestLast / 15.5);
  return flops(problem, shape) / sms * passes * waves /
         (wgmma_flops_per_clock(problem, shape, s) * kClockGhz * 1e6);
}

}  // namespace flashjit::autotune
