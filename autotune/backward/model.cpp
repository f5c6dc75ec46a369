// The backward pass's model: products at the family's rate, the waves of its grids, and the bytes of dQ's
// sum.
#include <algorithm>
#include <cmath>

#include "autotune/backward/backward.hpp"
#include "autotune/backward/model_fp32.hpp"
#include "autotune/backward/model_wgmma.hpp"
#include "autotune/model/memory.hpp"
#include "generator/render.hpp"

namespace flashjit::autotune {
namespace {

// Fragments (ldmatrix of 512 bytes) that all warps load for dQ: each warp has a rectangle of it, and the
// division among warps is the one with the fewest fragments.
double dq_fragments(int head_dim, const MmaBackwardSchedule& s) {
  const int rows = s.tile_m / 16, columns = (head_dim + 15) / 16;
  int least = rows + columns;
  for (int warps_m = 1; warps_m <= std::min(rows, s.warps); warps_m *= 2) {
    if (s.warps % warps_m != 0) continue;
    const int warps_n = s.warps / warps_m;
    least = std::min(least, rows / warps_m + (columns + warps_n - 1) / warps_n);
  }
  return s.warps * s.tile_n / 16.0 * least;
}

// The sum of what tensor cores, shared memory and the additions to dQ take, since little of it runs side by
// side in eight warps. The weights fit 66 timings on an H200 within 3.5 % (root mean square), and name the
// fastest or one 0.4 % slower in each of 18 cells (docs/performance/mma-backward.md). The weight of the
// additions has been halved since, as a lane now adds 16 bytes at a time, not 8.
double mma_ms(const Problem& problem, const Shape& shape, const MmaBackwardSchedule& s,
              const Target& target) {
  const double d = problem.head_dim, dv = problem.value_dim(), m = s.tile_m, n = s.tile_n;
  const double half = s.warps / 2.0, keys = n * s.sharers / half / 16, rows = m / s.sharers / 16;
  const double multiplies = m * n * (3 * d + 2 * dv) / 2048;
  const double fragments = half * (keys + rows) * (d + dv) / 16           // S and dP
                           + half * m / 16 * (d + dv) / (16 * s.sharers)  // dK and dV
                           + m * n / 256 * (2 * s.sharers + 1)            // P and dS
                           + dq_fragments(problem.head_dim, s);
  const double copied = 2 * m * (d + dv) / 128;
  const bool full_rate = target.capability == 80 || (target.capability >= 90 && target.capability < 120);
  const double tensor = target.capability == 80 ? 1.4 : full_rate ? 1.1 : 2.75;
  const double added = m * d * 4 / 128 * 2;
  const double registers = keys * (std::max(d, dv) / (2 * s.sharers) + 8 * rows) + 62;
  const double shared =
      2 * (n + s.stages * m) * (d + dv) + 2 * m * n * (1 + s.stages) + target.shared_reserved;
  const double ctas = std::max(
      1.0, std::floor(std::min(target.shared_per_sm / shared,
                               target.registers_per_sm / (32 * s.warps * std::min(255.0, registers)))));
  double step =
      tensor * multiplies + 0.757 * (4 * fragments + copied) + added + (s.stages == 1 ? 960 : 40) / ctas;
  if (s.warps * ctas < 8) step *= 1.03;
  if (s.sharers == 2) step += 250 / ctas;  // two more barriers a step
  // Pairs of queries and keys, those that fill up tiles too; half of the work of tiles on the diagonal is in
  // vain.
  const double heads = 1.0 * shape.batch * shape.heads;
  double pairs = flops(problem, shape) * filled_up(shape, s.tile_m, s.tile_n) / (2 * (3 * d + 2 * dv));
  if (problem.causal) pairs += heads * std::min(shape.seqlen_q, shape.seqlen_k) * std::max(m, n) / 2;
  const double tiles = std::ceil(shape.seqlen_k / n) * shape.batch * shape.kv_heads();
  const double slots = ctas * std::max(1, target.sm_count);
  const double waves = problem.causal ? 1 : std::ceil(tiles / slots) * slots / tiles;
  const double clocks = (pairs / (m * n) * step + tiles * (7300 + n * (d + dv) / 16) / ctas) * waves;
  // The second pass forms S and dP again: a quarter to a third more than one pass that adds.
  constexpr double kFitGhz = 1.7;
  return clocks * (s.dq == static_cast<int>(DqWay::own_pass) ? 1.3 : 1) / std::max(1, target.sm_count) /
         (kFitGhz * 1e6);
}

constexpr double kLaunchMs = 0.004;

}  // namespace

double predict_backward(const Problem& problem, const Shape& shape, const Schedule& schedule,
                        const Target& target) {
  if (shape.batch == 0 || shape.seqlen_k == 0 || shape.seqlen_q == 0) return kLaunchMs;
  double main_ms = 0;
  switch (family_of(schedule)) {
    case Family::simt:
      main_ms = simt_ms(problem, shape, std::get<SimtBackwardSchedule>(schedule), target);
      break;
    case Family::mma:
      main_ms = (problem.dtype == DType::fp32 ? mma_fp32_ms : mma_ms)(
          problem, shape, std::get<MmaBackwardSchedule>(schedule), target);
      break;
    case Family::wgmma:
      main_ms = (problem.dtype == DType::fp32 ? wgmma_fp32_ms : wgmma_ms)(
          problem, shape, std::get<WgmmaBackwardSchedule>(schedule), target);
      break;
  }
  // Sums are cleared, written back and read again, unless the main kernel itself turns them into dQ.
  const Workspace workspace = workspace_of(problem, schedule);
  const bool sums = workspace.dq_sum && !workspace.counters;
  const double rows = 1.0 * shape.batch * shape.heads * shape.seqlen_q;
  double bytes = sums ? 4.0 * 3 * rows * problem.head_dim : 0;
  double other_ms = 3 * kLaunchMs;
  if (problem.dtype != DType::fp32) {
    constexpr double kOtherMs = 0.008;              // seen beside short sequences
    bytes += 2.0 * 2 * rows * problem.value_dim();  // O and dO, before the main kernel
    other_ms += kOtherMs;
  }
  return main_ms + bytes / memory_rate(target) + other_ms;
}

}  // namespace flashjit::autotune
