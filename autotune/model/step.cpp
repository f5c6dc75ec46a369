// Cycles of each unit for one step of a tile, family by family, and how well they overlap. Figures are public
// ones (CUDA C++ Programming Guide, throughput of native arithmetic instructions; vendors' white papers) and,
// for Hopper, measured ones (docs/performance/wgmma.md).
#include "autotune/model/step.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "autotune/model/memory.hpp"
#include "generator/recipe.hpp"
#include "generator/render.hpp"

namespace flashjit::autotune {
namespace {

constexpr auto kMachines = std::to_array<Machine>({
    {75, 1.5, 512, 64},
    {80, 1.4, 2048, 64},
    {86, 1.7, 512, 128},
    {87, 1.3, 1024, 128},
    {88, 1.3, 1024, 128},
    {89, 2.5, 512, 128},
    {90, 1.7, 2560, 128},  // mma.sync reaches 62 % of what wgmma does
    {100, 1.8, 2048, 128},
    {103, 1.8, 2048, 128},
    {110, 1.5, 1024, 128},
    {120, 2.4, 512, 128},
    {121, 2.4, 512, 128},
});

constexpr double kWgmmaFlops = 4096;
constexpr double kExponentials = 16;  // MUFU.EX2 per clock and multiprocessor, every arch so far
constexpr double kSharedBytes = 128;  // per clock and multiprocessor
constexpr double kL2Bytes = 48;       // per clock and multiprocessor, sustained with all of them reading
constexpr double kLoadCycles = 700;   // from a copy's issue to its data, out of L2 under load
constexpr double kLoneCta = 1.3;      // mma: how much more lies bare where one CTA has the multiprocessor
constexpr double kColdBytes = 34;     // wgmma: per clock, of a CTA's first block
constexpr double kStepCycles = 350;   // mma: a part of a step waits at barriers so long, and others go on
constexpr double kFewWarps = 80;      // mma: more of a step that one or two warps run; other CTAs hide some

double padded(int dim) {
  const int whole = (dim + 15) / 16 * 16;
  return whole;
}

int ctas_of(const Target& target, const Geometry& geometry, double registers) {
  const double shared = geometry.shared_bytes + target.shared_reserved;
  const double most = std::min(
      {static_cast<double>(target.ctas_per_sm), std::floor(1.0 * target.threads_per_sm / geometry.threads),
       std::floor(target.shared_per_sm / shared),
       std::floor(target.registers_per_sm / (geometry.threads * std::ceil(registers / 8) * 8))});
  return static_cast<int>(std::max(1.0, most));
}

// What __launch_bounds__ leaves a thread at most.
double register_limit(int min_ctas, double threads) {
  return std::min(255.0, min_ctas > 0 ? std::floor(65536.0 / (threads * min_ctas) / 8) * 8 : 255.0);
}

// What ptxas gives a thread, fitted to 1,900 kernels of sm_80, 86, 90 and 120, which it treats alike: within
// ten registers for two of three (docs/performance/mma.md). It decides how many CTAs share a multiprocessor.
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

// Registers above the limit go to local memory and come back, several times a step.
double spill_factor(double registers, double limit) {
  return registers <= limit ? 1 : 1.15 + (registers - limit) / 48;
}

// What part of the lesser units' work is not hidden behind the busiest one's: in-order warps hide little
// alone.
double exposed_share(double warps) {
  return 0.62 / std::sqrt(std::max(1.0, warps / 4));
}

double combine(std::initializer_list<double> units, double share) {
  double sum = 0, largest = 0;
  for (const double cycles : units) {
    sum += cycles;
    largest = std::max(largest, cycles);
  }
  return largest + share * (sum - largest);
}

// How long a step waits for its copies: they were issued `ahead` steps before they are wanted.
double exposed_load(double ahead, double step, int ctas) {
  return std::max(0.0, kLoadCycles - ahead * step) / ctas;
}

Step step_of(const Problem& p, const MmaSchedule& s, const Target& target, const Machine& machine,
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
  // Before a tile's first product and after its last: the first copies, of which more stages have more under
  // way; Q's way into registers; and optimism, which pays over many blocks only (fitted to 32 to 128 keys).
  const double ends = 2800 - (s.stages > 1 ? 800 : 0) - (s.stages > 2 ? 400 : 0) +
                      (s.q_in_regs == 1 ? 600 : 0) + (s.optimistic == 1 ? 800 : 0);
  // Persistent CTAs have their copies under way: measured at head_dim 256, 3,900 cycles less a tile.
  step.tile_cycles = s.persistent == 1 ? 1600 : (ends + m * (d + dv) * 2 / kL2Bytes) / step.ctas;
  if (s.unroll > 1) step.cycles *= 1.003;  // more code; what it gains is for the clock to say
  // Measured where family wgmma competes: of 64 to 256 keys.
  constexpr double kOfHopper = 0.9;
  if (target.capability == 90) {
    step.cycles *= kOfHopper;
    step.alone *= kOfHopper;
    step.tile_cycles *= kOfHopper;
    if (s.warps == 1) step.start_cycles += 1000;  // a lone warp asks for all of its tile; of few short tiles
  }
  return step;
}

Step step_of(const Problem& p, const SimtSchedule& s, const Target& target, const Machine& machine,
             const Geometry& geometry) {
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
    // Loads from shared memory also take issue slots that FFMA would use.
    return spill * combine({fma + 0.25 * shared, exponentials, simple, shared, l2},
                           exposed_share(s.warps * ctas)) +
           80;
  };
  const double ahead = s.stages == 1 ? 0.1 : 0.5;
  step.cycles = together(step.ctas) + exposed_load(ahead, together(1) * step.ctas, step.ctas);
  step.alone = together(1) + exposed_load(ahead, together(1), 1);
  step.tile_cycles = (2500 + m * (d + dv) * 4 / kL2Bytes) / step.ctas;
  if (s.unroll > 1) step.cycles *= 1.003;
  return step;
}

// Cycles that TMA takes for a row of `columns` columns. Where heads begin and end off a 32-byte sector they
// were measured (bench/results/h200-forward/tma-rows.jsonl), as means of heads that begin on one and such
// that do not; elsewhere they are what fits the times of whole kernels, which feel less of them without a
// mask (bench/results/h200-forward/edge-tiles.jsonl), and more of wide ones, but in pairs of CTAs
// (bench/results/h100-forward/timings-11.jsonl).
double copy_cycles(int columns, bool causal, bool alone) {
  const int whole = columns / 64, rest = columns % 64;
  if (rest == 0) return whole * (!causal ? 0.5 : whole <= 2 ? 2.5 : 1.9);
  if (columns % 16 == 0) return (causal || whole == 0 ? 3.9 : 1.95) * (whole + 0.7);
  const double rest_cycles = rest < 16 ? 1.3 : rest < 32 ? 2.8 : rest < 48 ? 3.2 : 3.7;
  return (causal ? 1 : 0.9) * (columns > 160 && alone ? 1.2 : 1) * (3.8 * whole + rest_cycles);
}

// What a tile costs beside its steps, and a CTA before its first.
void add_tile_cycles(const Problem& p, const WgmmaSchedule& s, Step& step) {
  const double n = s.tile_n, groups = s.tile_m / 64.0;
  step.tile_cycles = (s.persistent == 0 ? 2600 : 1100) + (s.o_passes == 0 ? 900 : 120 * s.o_passes) +
                     (s.cluster > 1 ? p.causal ? 3100 : 1600 : 0);
  if (groups == 4 && s.q_in_regs == 1) step.tile_cycles -= 250;  // measured at head dims from 24 to 48
  // Under a mask, where tiles end one after the other, a first block's softmax is beside nobody's products.
  if (p.causal) step.tile_cycles += 6 * groups * (n - 64);  // measured from 128 to 1024 keys
  // Without one, long first blocks of several warpgroups; fitted, as in step_factor().
  if (!p.causal && groups > 1) step.tile_cycles += 2.5 * groups * std::max(0.0, n - 96);
  // A number off a counter, where none is longest; measured from 128 to 1024 keys.
  if (!p.causal && s.persistent == 2) step.tile_cycles += 350;
  // Two warpgroups of narrow values; measured from 256 to 640 keys.
  if (groups == 2 && p.value_dim() <= 64 && !p.causal && s.min_ctas == 0) step.tile_cycles += 400;
  // Which no other warpgroup's work hides; less where other CTAs' tiles are longer and shorter.
  if (groups == 1) step.tile_cycles += p.causal ? 400 : 900;
  const double first_block = n * (p.head_dim + p.value_dim()) * size_of(p.dtype) / kColdBytes;
  (s.persistent == 0 ? step.tile_cycles : step.start_cycles) += first_block;
  // More threads take longer to begin: a microsecond in kernels of one wave, measured.
  if (groups > 1 && s.persistent == 0) step.tile_cycles += 1000;
  if (groups > 1 && s.persistent != 0) step.start_cycles += 2000;
  if (s.cluster > 1) step.start_cycles += 1700;  // until both have begun; measured, up to two waves
}

// What a step takes beside what its units say: measured, or where that is said fitted to all timings
// (docs/performance/wgmma/random-problems.md).
double step_factor(const Problem& p, const WgmmaSchedule& s) {
  const int n = s.tile_n, groups = s.tile_m / 64, d = p.head_dim, dv = p.value_dim(),
            widest = std::max(d, dv);
  double factor = 1;
  if (p.causal && n > 64 && dv <= 64) factor *= 1.02;  // the diagonal hides more of longer blocks
  // Q is read for each block: power and ports, measured at head_dim 128, and fitted beyond.
  if (s.q_in_regs == 0 && d > 64 && d <= 128) factor *= 1.01;
  if (s.q_in_regs != 1 && groups > 1 && widest > 128 && widest <= 192) factor *= 1.04;
  if (s.unroll > 1) factor *= 1.003;
  // Of what the space has at ptxas's first level.
  if (s.ptxas == 1 && (p.causal || d > 64) && widest <= 96) factor *= 0.995;
  // Loads that two CTAs share save power, and make each wait for the other, which short steps feel most:
  // 1 % less time from head_dim 80 to 160, 1 % more beyond, 1.5 % more at 64. Under a mask they wait longer:
  // 6 % more than that up to 160, and at each tile's ends.
  if (s.cluster > 1) {
    factor *= d <= 64 ? 1.015 : d <= 160 ? 0.99 : 1.01;
    if (p.causal && d <= 160) factor *= 1.06;
  }
  // Short blocks: of one warpgroup where rows end in a box of their own, from head_dim 168 on; of several off
  // a counter, fitted.
  if (groups == 1 && n < 64 && d % 64 != 0) factor *= 1.06;
  if (groups > 1 && n < 64 && s.persistent == 2 && (widest <= 128 || s.stages == 2))
    factor *= widest <= 128 ? 1.15 : 1.08;
  // Even shares of one warpgroup, and long blocks of four (head_dim 8 to 64); fitted.
  if (groups == 1 && s.persistent == 3 && widest > 128 && widest <= 192) factor *= 1.04;
  if (groups == 4 && n > 64 && d <= 64 && !p.causal) factor *= 1.025;
  return factor;
}

Step step_of(const Problem& p, const WgmmaSchedule& s, double blocks) {
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
  // One warpgroup that has a multiprocessor to itself computes as fast as L2 sends it K and V, which a tile
  // of few keys feels. Longer ones do not: with it, 64 rows of head_dim 256 were expected to take 20 to 50 %
  // longer than they do (bench/results/h200-tune/timings-29.jsonl).
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
  // Copies that wait for memory run ahead of all else, and hide it but for a fifth (fitted to decoding).
  const double computing = combine({tensor, softmax}, share);
  // CTAs that share out a tile's keys have barriers beside copies, and TMA the highest clock (of 4 to 32
  // tiles off the sectors).
  const double waited_for = s.splits > 1 ? combine({computing + kBarriers, 0.8 * copies}, 0.2)
                                         : combine({computing, copies}, 0.2) + kBarriers;
  step.own_keys = std::min(step.alone, waited_for);
  add_tile_cycles(p, s, step);
  if (step.ctas > 1) {  // measured, up to head_dim 64
    // Two CTAs read a head's keys for what one could; where heads begin inside of a line it comes twice.
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

}  // namespace

const Machine& machine_of(const Target& target) {
  const Machine* best = &kMachines.front();
  for (const Machine& machine : kMachines) {
    if (machine.capability <= target.capability) best = &machine;
  }
  return *best;
}

Step step_of(const Problem& p, const Schedule& schedule, const Target& target, const Machine& machine,
             double blocks) {
  if (const auto* simt = std::get_if<SimtSchedule>(&schedule))
    return step_of(p, *simt, target, machine, geometry_simt(p, *simt));
  if (const auto* mma = std::get_if<MmaSchedule>(&schedule))
    return step_of(p, *mma, target, machine, geometry_mma(p, *mma, target));
  return step_of(p, std::get<WgmmaSchedule>(schedule), blocks);
}

}  // namespace flashjit::autotune
