// Family simt.
#include <algorithm>

#include "autotune/model/families.hpp"
#include "autotune/model/units.hpp"
#include "generator/recipe.hpp"

namespace flashjit::autotune {
namespace {

// Registers above the limit go to local memory and come back, several times a step.
double spill_factor(double registers, double limit) {
  return registers <= limit ? 1 : 1.15 + (registers - limit) / 48;
}

}  // namespace

Step simt_step(const Problem& p, const SimtSchedule& s, const Target& target, const Machine& machine) {
  const Geometry geometry = geometry_simt(p, s);
  const double m = s.tile_m, n = s.tile_n, d = p.head_dim, dv = p.value_dim();
  const double threads = geometry.threads;
  const double rows = m * s.lanes / threads, keys = n / s.lanes, columns = dv / s.lanes;
  const double registers = rows * keys + rows * columns + 4 * (rows + keys) + 36;
  const double limit = register_limit(s.min_ctas, threads);
  Step step;
  step.ctas = ctas_of(target, geometry, std::min(registers, limit));
  const double fma = m * n * (d + dv) / machine.fp32_lanes;
  const double exponentials = m * n / kExponentials;
  const double simple = m * n * 6 / machine.fp32_lanes;
  // 16-byte loads per warp: rows hit 32/lanes places and keys `lanes`, each 16 bytes wide.
  const double row_load = std::max(1.0, 32.0 / s.lanes * 16 / kSharedBytes),
               key_load = std::max(1.0, s.lanes * 16 / kSharedBytes);
  const double shared = s.warps * (d / 4 * (rows * row_load + keys * key_load) +
                                   n / 4 * (rows * row_load + columns * key_load)) +
                        2 * n * (d + dv) * 4 / kSharedBytes;
  const double l2 = n * (d + dv) * 4 / kL2Bytes;
  const double spill = spill_factor(registers, limit);
  const auto together = [&](int ctas) {
    const double warps = s.warps * ctas;
    // Fewer than four warps leave schedulers idle. Loads from shared memory also take issue slots that FFMA
    // would use.
    return std::max(1.0, 4 / warps) * spill *
               combine({fma + 0.25 * shared, exponentials, simple, shared, l2}, exposed_share(warps)) +
           600.0 / ctas;
  };
  const double ahead = s.stages == 1 ? 0.1 : 0.5;
  step.cycles = together(step.ctas) + exposed_load(ahead, together(1) * step.ctas, step.ctas);
  step.alone = together(1) + exposed_load(ahead, together(1), 1);
  step.tile_cycles = (2500 + m * (d + dv) * 4 / kL2Bytes) / step.ctas;
  // Where no other CTA hides the wait for shared memory, it helps to load ahead.
  if (s.unroll > 1 || s.prefetch == 1) step.alone *= 0.91;
  if (s.unroll > 1) step.cycles *= 1.003;
  return step;
}

}  // namespace flashjit::autotune
