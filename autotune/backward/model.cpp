// The backward pass's model: products at the family's rate, the waves of its grids, and the bytes of dQ's
// sum.
#include <algorithm>
#include <cmath>

#include "autotune/backward/backward.hpp"

namespace flashjit::autotune {
namespace {

// fp32 FMA is bound by the multiply-adds or by shared memory, which delivers 128 bytes a clock, and by what a
// step waits for that no other CTA of the multiprocessor covers. In clocks per tile of queries and keys.
double simt_flops_per_clock(const Problem& problem, const Shape& shape, const SimtBackwardSchedule& s,
                            const Target& target) {
  const int threads = 32 * s.warps;
  const double fmas = 1.0 * s.tile_m * s.tile_n * (3 * problem.head_dim + 2 * problem.value_dim());
  // Four dims of S or dP take a thread rows + keys loads of 16 bytes for 4 * rows * keys multiply-adds.
  const double rows = std::max(1.0, s.tile_m / (4.0 * s.warps));
  const double keys = s.tile_n / 8.0;
  const double scores = 1.0 * s.tile_m * s.tile_n * (problem.head_dim + problem.value_dim());
  const double score_clocks = scores * std::max(1.125 / 128, (rows + keys) / (4 * rows * keys) / 8);
  // A gradient's share of a thread is near to a square: a row and a column of it are loaded a step.
  const auto gradient_clocks = [&](int tile, int other, int dim) {
    const double share = std::max(1.0, 1.0 * tile * dim / threads);
    return 1.0 * tile * dim * other * std::max(1.0 / 128, 2 / std::sqrt(share) / 4 / 8);
  };
  const double clocks = score_clocks + gradient_clocks(s.tile_n, s.tile_m, problem.head_dim) +
                        gradient_clocks(s.tile_n, s.tile_m, problem.value_dim()) +
                        gradient_clocks(s.tile_m, s.tile_n, problem.head_dim);
  const double bytes =
      4.0 * ((s.tile_m + s.tile_n) * (problem.head_dim + problem.value_dim()) + 2 * s.tile_m * s.tile_n);
  const double ctas = std::clamp(std::floor(target.shared_per_sm / bytes), 1.0, 512.0 / threads);
  constexpr double kWait = 4000;  // two loads and four barriers
  // Rows of a tile beyond the last query, and keys beyond the last, are work too.
  const auto used = [](int size, int tile) { return size / (std::ceil(1.0 * size / tile) * tile); };
  return 2 * fmas / (clocks * 1.3 + kWait / ctas) * used(shape.seqlen_q, s.tile_m) *
         used(shape.seqlen_k, s.tile_n);
}

// As timed on an H200 at 1k to 16k (docs/performance/wgmma-backward.md).
double wgmma_flops_per_clock(const Problem& problem, const Shape& shape, const WgmmaBackwardSchedule& s) {
  const auto way = static_cast<DqWay>(s.dq);
  const bool narrow = std::max(problem.head_dim, problem.value_dim()) <= 64;
  const bool wide = std::max(problem.head_dim, problem.value_dim()) > 128;
  double rate = way == DqWay::own_pass ? (narrow ? 2600 : 2950) : narrow ? 2450 : 2800;
  if (narrow && s.tile_m == 64) rate *= 0.9;  // not timed
  if (!wide && s.tile_n == 64) rate *= 0.8;   // not timed
  if (turn_counters(way) > 0) rate *= 0.75;   // who waits for a turn computes nothing; not timed
  if (s.turns > 0) rate *= 0.99;
  // Tiles on the diagonal are half in vain.
  if (problem.causal) rate /= 1 + 0.5 * (s.tile_m + s.tile_n) / std::max(s.tile_n, shape.seqlen_k);
  // Below 64 columns exponentials are what takes time, as many as for 64.
  return rate * std::min(1.0, (problem.head_dim + problem.value_dim()) / 128.0);
}

// Multiply-adds counted twice, per clock and multiprocessor, as the main kernels reach them.
double flops_per_clock(const Problem& problem, const Shape& shape, const Schedule& schedule,
                       const Target& target) {
  switch (family_of(schedule)) {
    case Family::simt:
      return simt_flops_per_clock(problem, shape, std::get<SimtBackwardSchedule>(schedule), target);
    case Family::mma:
      return target.capability == 80 || target.capability >= 90 ? 900 : 400;
    case Family::wgmma:
      return wgmma_flops_per_clock(problem, shape, std::get<WgmmaBackwardSchedule>(schedule));
  }
  return 1;
}

double dram_gbps(const Target& target) {
  return target.capability == 90 || target.capability == 100 || target.capability == 103 ? 4000 : 2000;
}

constexpr double kClockGhz = 1.6;
constexpr double kLaunchMs = 0.004;

}  // namespace

double predict_backward(const Problem& problem, const Shape& shape, const Schedule& schedule,
                        const Target& target) {
  const auto way = static_cast<DqWay>(get(schedule, "dq"));
  const bool own_pass = way == DqWay::own_pass;
  const double sms = std::max(1, target.sm_count);
  // Five products in one pass; seven where dQ has a pass of its own, which forms S and dP again.
  const double work = flops(problem, shape) / sms * (own_pass ? 7.0 / 5 : 1.0);
  const double ctas =
      std::ceil(1.0 * shape.seqlen_k / get(schedule, "tile_n")) * shape.kv_heads() * shape.batch;
  if (ctas == 0 || shape.seqlen_q == 0) return kLaunchMs;
  const double waves = std::ceil(ctas / sms) / (ctas / sms);
  const double main_ms = work * waves / flops_per_clock(problem, shape, schedule, target) / (kClockGhz * 1e6);
  // Sums are cleared, written back and read again, unless turns are taken at them.
  const double sum_bytes =
      way == DqWay::atomic ? 4.0 * 3 * shape.batch * shape.heads * shape.seqlen_q * problem.head_dim : 0;
  return main_ms + sum_bytes / (dram_gbps(target) * 1e6) + 3 * kLaunchMs;
}

}  // namespace flashjit::autotune
