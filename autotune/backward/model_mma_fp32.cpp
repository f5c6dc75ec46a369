// Family mma's backward pass in fp32, as the sum of what tensor cores, fragments loaded from shared memory
// and additions to dQ take: with two warps a scheduler little of it runs side by side. The figures were
// fitted to 546 timings of 62 problems on an H200, within 11 % (root mean square;
// docs/performance/mma-fp32.md).
#include <algorithm>
#include <cmath>

#include "autotune/backward/model_fp32.hpp"
#include "autotune/model/step.hpp"
#include "generator/families/mma_backward_fp32.hpp"
#include "generator/families/mma_backward_layout.hpp"

namespace flashjit::autotune {
namespace {

constexpr int kSplitProducts = 6;  // of parts, for a product

// Blocks of 16 columns that one of `sharers` warps has.
double blocks_of(int dim, double sharers) {
  return std::ceil(std::ceil(dim / 16.0) / sharers);
}

// A kernel of the pass: what one step of a CTA takes, and what its CTAs are.
struct Kernel {
  double mmas = 0;       // products of parts, m16n8k16
  double fragments = 0;  // ldmatrix of 512 bytes, of all warps
  double added = 0;      // lines of 128 bytes that are added to dQ
  double warps = 0, resident = 0;
  double steps = 0, ctas = 0;
  double longest = 0;  // steps of the CTA that has most
  double columns = 0;  // that a CTA reads at its beginning, times its rows
};

double mmas(double rows, double keys, double blocks) {
  return kSplitProducts * rows / 16 * keys / 8 * blocks;
}

// CTAs of a multiprocessor.
double resident(double shared_bytes, double warps, double registers, const Target& target) {
  return std::max(1.0, std::floor(std::min(target.shared_per_sm / (shared_bytes + target.shared_reserved),
                                           target.registers_per_sm / (32 * warps * registers))));
}

Kernel of_keys(const Problem& p, const Shape& shape, const MmaBackwardSchedule& s, const Target& target) {
  const bool adds_dq = mma_backward::adds_dq(s);
  const double blocks_qk = blocks_of(p.head_dim, 1), blocks_v = blocks_of(p.value_dim(), 1);
  const double half = s.warps / 2.0, rows = s.tile_m / 16.0, keys = s.tile_n / 16.0;
  Kernel kernel;
  kernel.mmas = mmas(s.tile_m, s.tile_n, (adds_dq ? 3 : 2) * blocks_qk + 2 * blocks_v);
  const double scores = (blocks_qk + blocks_v) * (1 + rows / s.sharers);
  const double of_keys = rows * (blocks_of(p.head_dim, s.sharers) + blocks_of(p.value_dim(), s.sharers));
  const double of_queries = adds_dq ? keys * (1 + blocks_of(p.head_dim, s.warps / rows)) : 0;
  kernel.fragments = kSplitParts * (half * (scores + of_keys) + s.warps * of_queries);
  // Without vectors the lanes' four numbers go one by one.
  if (adds_dq) kernel.added = s.tile_m * p.head_dim / 32.0 * (target.capability >= 90 ? 1 : 2);
  // Registers of a thread as 816 compiled kernels had them, give or take eight.
  const int widest = std::max(p.head_dim, p.value_dim());
  const double waiting = 8 * std::ceil(2 * blocks_of(widest, 1) * s.tile_m / (32 * s.warps));
  const double registers = 1.46 * 8 * blocks_of(widest, s.sharers) + 2.37 * waiting +
                           0.46 * s.tile_m / s.sharers + 0.45 * s.tile_m + 0.25 * s.tile_n + 0.13 * widest +
                           30;
  kernel.warps = s.warps;
  kernel.resident =
      resident(shared_bytes_mma_backward_fp32(p, s), s.warps, std::min(255.0, registers), target);
  kernel.steps = tiles_of_head(p, shape, s.tile_m, s.tile_n) * shape.batch * shape.heads;
  kernel.ctas = std::ceil(1.0 * shape.seqlen_k / s.tile_n) * shape.batch * shape.kv_heads();
  kernel.longest = std::ceil(1.0 * shape.seqlen_q / s.tile_m) * shape.heads / shape.kv_heads();
  kernel.columns = 1.0 * s.tile_n * (p.head_dim + p.value_dim());
  return kernel;
}

// The second kernel, where dQ has a pass of its own: three products. Its tiles are no choice of the schedule.
Kernel of_queries(const Problem& p, const Shape& shape, const Target& target) {
  const MmaBackwardQueries tile = queries_mma_backward_fp32(p, target);
  const double blocks_qk = blocks_of(p.head_dim, 1), blocks_v = blocks_of(p.value_dim(), 1);
  const double keys = tile.tile_n / 16.0;
  Kernel kernel;
  kernel.mmas = mmas(tile.tile_m(), tile.tile_n, 2 * blocks_qk + blocks_v);
  kernel.fragments = kSplitParts * tile.warps * ((blocks_qk + blocks_v) * (1 + keys) + keys * blocks_qk);
  kernel.warps = tile.warps;
  kernel.resident = resident(tile.total, tile.warps, 180, target);
  kernel.steps = tiles_of_head(p, shape, tile.tile_m(), tile.tile_n) * shape.batch * shape.heads;
  kernel.ctas = std::ceil(1.0 * shape.seqlen_q / tile.tile_m()) * shape.batch * shape.heads;
  kernel.longest = std::ceil(1.0 * shape.seqlen_k / tile.tile_n);
  kernel.columns = 1.0 * tile.tile_m() * (p.head_dim + p.value_dim());
  return kernel;
}

// How much longer a step takes where fewer than four warps a scheduler wait for its latencies.
double exposure(double warps) {
  return std::pow(std::max(1.0, 16 / warps), 0.349);
}

double clocks_of(const Kernel& kernel, const Target& target, bool causal) {
  constexpr double kStep = 1830;  // of a CTA at its barriers, and until its first tiles have come
  const double of_sm = kernel.ctas / std::max(1, target.sm_count);
  const double tensor = 4096 * kernel.mmas / machine_of(target).mma_flops;
  const double busy = std::max(tensor, 0.3 * tensor + 5.00 * kernel.fragments + 7.07 * kernel.added);
  const double side_by_side = std::min(kernel.resident, std::max(1.0, of_sm));
  const double start = kStep + 0.722 * kernel.columns;
  const double all = kernel.steps * (busy * exposure(kernel.warps * side_by_side) + kStep / side_by_side) +
                     kernel.ctas * start / side_by_side;
  const double longest = kernel.longest * (busy * exposure(kernel.warps) + kStep) + start;
  return clocks_of_waves(all / kernel.ctas, longest, of_sm, causal);
}

constexpr double kFitGhz = 1.98;

double milliseconds(const Kernel& kernel, const Target& target, bool causal) {
  return clocks_of(kernel, target, causal) / (kFitGhz * 1e6);
}

}  // namespace

double mma_fp32_ms(const Problem& p, const Shape& shape, const MmaBackwardSchedule& s, const Target& target) {
  const double ms = milliseconds(of_keys(p, shape, s, target), target, p.causal);
  return mma_backward::adds_dq(s) ? ms : ms + milliseconds(of_queries(p, shape, target), target, p.causal);
}

}  // namespace flashjit::autotune
