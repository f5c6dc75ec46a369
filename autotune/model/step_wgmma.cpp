// Family wgmma. Figures are measured, or fitted where a comment says so (docs/performance/wgmma.md).
#include <algorithm>

#include "autotune/model/families.hpp"
#include "autotune/model/memory.hpp"
#include "autotune/model/units.hpp"

namespace flashjit::autotune {
namespace {

constexpr double kWgmmaFlops = 4096;
constexpr double kColdBytes = 34;  // per clock, of a CTA's first block

// Cycles that TMA takes for a row of `columns` columns. Where heads begin and end off a 32-byte sector they
// were measured (bench/results/h200-forward/tma-rows.jsonl), as means over heads that begin on a sector and
// heads that do not. Elsewhere they are fitted to the times of whole kernels, which feel them less without a
// mask (bench/results/h200-forward/edge-tiles.jsonl), and more with wide heads, except in pairs of CTAs
// (bench/results/h100-forward/timings-11.jsonl).
double copy_cycles(int columns, bool causal, bool alone) {
  const int whole = columns / 64, rest = columns % 64;
  if (rest == 0) return whole * (!causal ? 0.5 : whole <= 2 ? 2.5 : 1.9);
  if (columns % 16 == 0) return (causal || whole == 0 ? 3.9 : 1.95) * (whole + 0.7);
  const double rest_cycles = rest < 16 ? 1.3 : rest < 32 ? 2.8 : rest < 48 ? 3.2 : 3.7;
  return (causal ? 1 : 0.9) * (columns > 160 && alone ? 1.2 : 1) * (3.8 * whole + rest_cycles);
}

// What a tile costs besides its steps, and a CTA before its first step.
void add_tile_cycles(const Problem& p, const WgmmaSchedule& s, Step& step) {
  const double n = s.tile_n, groups = s.tile_m / 64.0;
  step.tile_cycles = (s.persistent == 0 ? 2600 : 1100) + (s.o_passes == 0 ? 900 : 120 * s.o_passes) +
                     (s.cluster > 1 ? p.causal ? 3100 : 1600 : 0);
  if (groups == 4 && s.q_in_regs == 1) step.tile_cycles -= 250;  // measured at head dims from 24 to 48
  // Under a mask, where tiles end one after the other, no products run beside a first block's softmax.
  if (p.causal) step.tile_cycles += 6 * groups * (n - 64);  // measured from 128 to 1024 keys
  // Without a mask, long first blocks of several warpgroups; fitted, as in step_factor().
  if (!p.causal && groups > 1) step.tile_cycles += 2.5 * groups * std::max(0.0, n - 96);
  // Drawing a ticket, where no tile is longest; measured from 128 to 1024 keys.
  if (!p.causal && s.persistent == 2) step.tile_cycles += 350;
  // Two warpgroups of narrow values; measured from 256 to 640 keys.
  if (groups == 2 && p.value_dim() <= 64 && !p.causal && s.min_ctas == 0) step.tile_cycles += 400;
  // One warpgroup's beginning and end, which no other warpgroup hides; less where other CTAs' tiles are
  // longer and shorter.
  if (groups == 1) step.tile_cycles += p.causal ? 400 : 900;
  const double first_block = n * (p.head_dim + p.value_dim()) * size_of(p.dtype) / kColdBytes;
  (s.persistent == 0 ? step.tile_cycles : step.start_cycles) += first_block;
  // More threads take longer to begin: a microsecond in kernels of one wave, measured.
  if (groups > 1 && s.persistent == 0) step.tile_cycles += 1000;
  if (groups > 1 && s.persistent != 0) step.start_cycles += 2000;
  if (s.cluster > 1) step.start_cycles += 1700;  // until both have begun; measured, up to two waves
}

// Factor on a step for what its units do not explain: measured, or, where a comment says so, fitted to all
// timings (docs/performance/wgmma/random-problems.md).
double step_factor(const Problem& p, const WgmmaSchedule& s) {
  const int n = s.tile_n, groups = s.tile_m / 64, d = p.head_dim, dv = p.value_dim(),
            widest = std::max(d, dv);
  double factor = 1;
  if (p.causal && n > 64 && dv <= 64) factor *= 1.02;  // the diagonal hides more of longer blocks
  // Q is read for each block, which takes power and ports; measured at head_dim 128, and fitted beyond.
  if (s.q_in_regs == 0 && d > 64 && d <= 128) factor *= 1.01;
  if (s.q_in_regs != 1 && groups > 1 && widest > 128 && widest <= 192) factor *= 1.04;
  if (s.unroll > 1) factor *= 1.003;
  // Schedules that the space has at ptxas's first level.
  if (s.ptxas == 1 && (p.causal || d > 64) && widest <= 96) factor *= 0.995;
  // Loads that two CTAs share save power, and make each wait for the other, which short steps feel most:
  // 1 % less time from head_dim 80 to 160, 1 % more beyond, 1.5 % more at 64. Under a mask they wait longer:
  // 6 % more than that up to 160, and at each tile's ends.
  if (s.cluster > 1) {
    factor *= d <= 64 ? 1.015 : d <= 160 ? 0.99 : 1.01;
    if (p.causal && d <= 160) factor *= 1.06;
  }
  // Short blocks: with one warpgroup, where rows end in a box of their own, from head_dim 168 on; with
  // several, where tiles come off a counter, fitted.
  if (groups == 1 && n < 64 && d % 64 != 0) factor *= 1.06;
  if (groups > 1 && n < 64 && s.persistent == 2 && (widest <= 128 || s.stages == 2))
    factor *= widest <= 128 ? 1.15 : 1.08;
  // Even shares with one warpgroup, and long blocks with four (head_dim 8 to 64); fitted.
  if (groups == 1 && s.persistent == 3 && widest > 128 && widest <= 192) factor *= 1.04;
  if (groups == 4 && n > 64 && d <= 64 && !p.causal) factor *= 1.025;
  return factor;
}

}  // namespace

Step wgmma_step(const Problem& p, const WgmmaSchedule& s, double blocks) {
  const double n = s.tile_n, d = padded(p.head_dim), dv = padded(p.value_dim());
  const double groups = s.tile_m / 64.0;
  // m64nNk16: N/2 cycles of tensor core; its B operand is N*32 bytes of shared memory, its A 2 KB unless in
  // registers.
  const double from_shared = s.q_in_regs == 1 ? 0 : s.q_in_regs == 2 ? 1024 : 2048;
  const double qk = d / 16 * std::max(n * 64 * 32 / kWgmmaFlops, (n * 32 + from_shared) / kSharedBytes);
  const double pv = n / 16 * std::max(dv * 64 * 32 / kWgmmaFlops, dv * 32 / kSharedBytes);
  const double tensor = groups * (qk + pv);
  // 64 rows: n*4 of MUFU, and what FMA and ALU add to it; measured, speculation is worth 4 to 7 % of the
  // whole.
  const double softmax = groups * n * ((s.lazy > 0 ? 5.2 : 5.9) - 0.4 * s.optimistic);
  // More query rows share each copy. Under a mask tiles of many heads are under way, so that L2 misses more.
  const bool alone = s.cluster == 1;
  const double k = copy_cycles(p.head_dim, p.causal, alone), v = copy_cycles(p.value_dim(), p.causal, alone);
  const double copies = n * (k + v) / s.cluster;
  // One warpgroup that has a multiprocessor to itself computes no faster than L2 sends it K and V, which
  // shows in tiles of few keys. Longer ones do not show it: with this limit, 64 rows of head_dim 256 were
  // expected to take 20 to 50 % longer than they do (bench/results/h200-tune/timings-29.jsonl).
  constexpr double kFewKeys = 256;
  const bool lone = groups == 1 && s.splits == 1 && s.min_ctas == 0 && (blocks - 1) * n < kFewKeys;
  const double reading =
      lone ? std::max(copies, n * (p.head_dim + p.value_dim()) * size_of(p.dtype) / kL2Bytes / s.cluster)
           : copies;
  // Other warpgroups fill what one leaves idle; products in flight together leave less of it.
  const auto share_beside = [&](double warpgroups) {
    double share = (s.optimistic == 1 ? 0.36 : 0.42) / warpgroups + 0.02;
    if (s.overlap == 0) share = std::min(1.0, share + 0.35);
    if (s.ping_pong == 0) share += p.value_dim() <= 128 ? 0.01 : groups > 1 ? 0.2 : 0;
    if (s.rescale_early == 0) share += 0.01;
    if (warpgroups == 1 && p.value_dim() <= 64) share += 0.1;  // a short step's latencies; measured
    return share;
  };
  Step step;
  step.ctas = std::max(1, s.min_ctas);
  const double share = share_beside(groups * step.ctas);
  constexpr double kBarriers = 150;  // the ring's and the turns'
  step.cycles = combine({tensor, softmax, reading}, share) + kBarriers / step.ctas;
  if (s.stages > 2) step.cycles -= 10;
  step.cycles *= step_factor(p, s);
  step.alone =
      step.ctas == 1 ? step.cycles : combine({tensor, softmax, copies}, share_beside(groups)) + kBarriers;
  // Copies that wait for memory run ahead of everything else, and hide all but a fifth of it (fitted to
  // decoding).
  const double computing = combine({tensor, softmax}, share);
  // CTAs that share out a tile's keys wait at barriers while copies run, and TMA runs at the highest clock (4
  // to 32 tiles off the sectors).
  const double waited_for = s.splits > 1 ? combine({computing + kBarriers, 0.8 * copies}, 0.2)
                                         : combine({computing, copies}, 0.2) + kBarriers;
  step.own_keys = std::min(step.alone, waited_for);
  add_tile_cycles(p, s, step);
  if (step.ctas > 1) {  // measured, up to head_dim 64
    // Two CTAs read a head's keys where one could have; where heads begin inside a line, the line comes
    // twice.
    const auto ends_inside = [&](int columns) { return kLine % (columns * size_of(p.dtype)) != 0; };
    const bool twice = groups == 1 && (ends_inside(p.head_dim) || ends_inside(p.value_dim()));
    if (twice) step.over_fetch = 1.1;
    step.cycles *= 1.06 * step.over_fetch;
    step.tile_cycles *= 0.85 * step.over_fetch / step.ctas;
  }
  step.balanced = s.persistent == 2;
  step.dealt = s.persistent == 1 || s.persistent == 3;
  return step;
}

}  // namespace flashjit::autotune
