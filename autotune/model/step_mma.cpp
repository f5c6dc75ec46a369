// Family mma: in 16 bits, and in fp32.
#include <algorithm>
#include <cmath>

#include "autotune/model/families.hpp"
#include "autotune/model/units.hpp"
#include "generator/recipe.hpp"

namespace flashjit::autotune {
namespace {

constexpr double kLoneCta = 1.3;     // how much more is exposed where one CTA has the multiprocessor
constexpr double kStepCycles = 350;  // waits of a part of a step at barriers, while other CTAs go on
constexpr double kFewWarps = 80;     // added to a step that one or two warps run; other CTAs hide some

// Registers that ptxas gives a thread, fitted to 1,900 kernels of sm_80, 86, 90 and 120, which it treats
// alike: within ten registers for two of three (docs/performance/mma.md). They decide how many CTAs share a
// multiprocessor.
double registers_of(const Problem& p, const MmaSchedule& s, double threads) {
  const double output = s.tile_m * padded(p.value_dim()) / threads, scores = s.tile_m * s.tile_n / threads;
  const double q = s.q_in_regs == 1 ? s.tile_m * padded(p.head_dim) / 2 / threads : 0;
  const double copies = s.tile_n * padded(p.head_dim) / 4 / threads, row_tiles = s.tile_m / 16.0 / s.warps;
  double registers = 40 + 1.1 * output + 0.57 * std::min(output, 64.0) + 1.16 * scores + 0.72 * q +
                     0.4 * copies - 10 * row_tiles;
  if (s.kv_apart == 1) registers += p.causal ? 5 + 0.66 * scores : 0.36 * scores;
  if (s.optimistic == 1) registers += s.kv_apart == 1 ? -16 : 5;
  if (s.unroll > 1) registers += 10;
  return std::min(registers, register_limit(s.min_ctas, threads));
}

// The same for fp32, fitted to 1,800 kernels of sm_80, 90a, 100 and 120.
double registers_of_fp32(const Problem& p, const MmaSchedule& s, double threads) {
  const double chunks = padded(std::max(p.head_dim, p.value_dim())) / 8;
  const double copies = 8 * std::ceil(chunks / std::floor(threads / s.tile_n));
  const double registers = 56 + 1.17 * (padded(p.value_dim()) / 2 + s.tile_n + 1.25 * copies);
  return std::min(registers, register_limit(s.min_ctas, threads));
}

Step step_16_bit(const Problem& p, const MmaSchedule& s, const Target& target, const Machine& machine,
                 const Geometry& geometry) {
  const double m = s.tile_m, n = s.tile_n, d = padded(p.head_dim), dv = padded(p.value_dim());
  Step step;
  step.ctas = ctas_of(target, geometry, registers_of(p, s, geometry.threads));
  const double tensor = 2 * m * n * (d + dv) / machine.mma_flops;
  const double exponentials = m * n / kExponentials;
  // Scale and subtract, maximum, sum, half a conversion, the mask's share. Optimism saves the maximum and
  // pays with registers and a second way through the step, measured to be worth it up to head_dim 64 only.
  const double simple = m * n * (s.optimistic == 0 ? 5 : dv <= 64 ? 4 : 6) / machine.fp32_lanes;
  // Each warp reads all of K and V; and Q's rows, again at each step, unless they are in registers.
  const double shared =
      (s.warps * n * (d + dv) * 2 + (s.q_in_regs == 1 ? 0 : m * d * 2) + n * (d + dv) * 2) / kSharedBytes;
  const double l2 = n * (d + dv) * 2 / kL2Bytes;
  const auto together = [&](int ctas) {
    // Warps of one CTA wait at the same barriers; those of several do not. No spills: legal() refuses them.
    double share = exposed_share(s.warps * ctas) * (ctas == 1 ? kLoneCta : 1);
    if (s.blocks > 1) share *= 0.97;  // the next part's product fills in, but takes registers
    // Each quarter of a multiprocessor has units of its own, which its warps alone can use.
    const double quarters = std::min(1.0, s.warps * ctas / 4.0);
    return combine({tensor / quarters, exponentials / quarters, simple / quarters, shared, l2}, share) +
           kStepCycles * s.blocks / std::min(ctas, 6) + (s.warps < 4 ? kFewWarps / std::sqrt(ctas) : 0);
  };
  const double ahead = s.stages == 1 ? 0.5 : s.stages - 1 + 0.25 * s.kv_apart;
  step.cycles = together(step.ctas) + exposed_load(ahead, together(1) * step.ctas, step.ctas);
  step.alone = together(1) + exposed_load(ahead, together(1), 1);
  // Before a tile's first product and after its last: the first copies, more of which are under way with more
  // stages; loading Q into registers; and optimism, which pays off over many blocks only (fitted to 32 to 128
  // keys).
  const double ends = 2800 - (s.stages > 1 ? 800 : 0) - (s.stages > 2 ? 400 : 0) +
                      (s.q_in_regs == 1 ? 600 : 0) + (s.optimistic == 1 ? 800 : 0);
  // Persistent CTAs have their copies under way already: 3,900 cycles less per tile, measured at head_dim
  // 256.
  step.tile_cycles = s.persistent == 1 ? 1600 : (ends + m * (d + dv) * 2 / kL2Bytes) / step.ctas;
  if (s.unroll > 1) step.cycles *= 1.003;  // more code; only measuring can say what it gains
  // Measured where family wgmma competes, with 64 to 256 keys.
  constexpr double kOfHopper = 0.9;
  if (target.capability == 90) {
    step.cycles *= kOfHopper;
    step.alone *= kOfHopper;
    step.tile_cycles *= kOfHopper;
    // A lone warp asks for all of its tile, which shows where tiles are few and short.
    if (s.warps == 1) step.start_cycles += 1000;
  }
  return step;
}

// Family mma in fp32: numbers are split into three of bf16, and a product takes six.
Step step_fp32(const Problem& p, const MmaSchedule& s, const Target& target, const Machine& machine,
               const Geometry& geometry) {
  const double m = s.tile_m, n = s.tile_n, d = padded(p.head_dim), dv = padded(p.value_dim());
  constexpr double kProducts = 6, kBytes = 6, kSplit = 5.5;  // per number
  // Fitted to 300 timings of 26 problems on an H200.
  constexpr double kOfUnits = 0.85, kShare = 0.6, kWaits = 1500;
  const double registers = registers_of_fp32(p, s, geometry.threads);
  Step step;
  step.ctas = ctas_of(target, geometry, registers);
  const double tensor = kProducts * 2 * m * n * (d + dv) / machine.mma_flops;
  const double exponentials = m * n / kExponentials;
  // K, V and P are split; softmax; sums in two halves are added up, S once and O at each step.
  const double simple =
      (kSplit * (n * (d + dv) + m * n) + 6 * m * n + m * n + 2 * m * dv) / machine.fp32_lanes;
  // Each warp reads all of K and V, and Q's rows; a thread writes what it has split.
  const double shared = kBytes * ((s.warps + 1) * n * (d + dv) + m * d) / kSharedBytes;
  const double l2 = n * (d + dv) * 4 / kL2Bytes;
  // A load of sixteen bytes by each lane looks up as many lines as it reads rows.
  const double lanes = std::min(32.0, geometry.threads / n);
  const double lookups = n * (d + dv) / 128 * 32 / lanes;
  const auto together = [&](int ctas) {
    // Quarters of a multiprocessor that have one warp less of each CTA wait for the others.
    const double warps = s.warps * ctas, dealt = s.warps < 4 ? warps : s.warps;
    const double uneven = 4 * std::ceil(dealt / 4) / dealt;
    const double cycles =
        combine({tensor * uneven, exponentials * uneven, simple * uneven, shared, l2, lookups},
                kShare / std::max(1.0, warps / 4));
    // One tile is on its way beside each of the two products.
    return kOfUnits * cycles + (kWaits + 2 * std::max(0.0, kLoadCycles - cycles / 2 * ctas)) / ctas;
  };
  step.cycles = together(step.ctas);
  step.alone = together(1);
  step.tile_cycles = (2800 + m * (d + dv) * 4 / kL2Bytes) / step.ctas;
  return step;
}

}  // namespace

Step mma_step(const Problem& p, const MmaSchedule& s, const Target& target, const Machine& machine) {
  const Geometry geometry = geometry_mma(p, s, target);
  return p.dtype == DType::fp32 ? step_fp32(p, s, target, machine, geometry)
                                : step_16_bit(p, s, target, machine, geometry);
}

}  // namespace flashjit::autotune
