// Family mma's backward pass in fp32, as the sum of what tensor cores, fragments loaded from shared memory,
// weights and additions to dQ take: with two warps a scheduler little of it runs side by side. The figures
// were fitted to 141 timings of 16 problems on an H200, within 9 % (root mean square); picks are 0.2 % behind
// the fastest in the mean (docs/performance/mma-fp32.md).
#include <algorithm>
#include <cmath>

#include "autotune/backward/model_fp32.hpp"
#include "autotune/model/step.hpp"
#include "generator/families/mma_backward_fp32.hpp"

namespace flashjit::autotune {
namespace {

constexpr int kParts = 3;     // bf16 numbers whose sum is one fp32 number
constexpr int kProducts = 6;  // of parts, for a product

// Blocks of 16 columns that one of `sharers` warps has.
double blocks_of(int dim, double sharers) {
  return std::ceil(std::ceil(dim / 16.0) / sharers);
}

// Fragments (ldmatrix of 512 bytes) that all warps load for a tile.
double fragments(const Problem& p, const MmaBackwardSchedule& s) {
  const double half = s.warps / 2.0, rows = s.tile_m / 16.0, keys = s.tile_n / 16.0;
  const double scores = (blocks_of(p.head_dim, 1) + blocks_of(p.value_dim(), 1)) * (1 + rows / s.sharers);
  const double of_keys = rows * (blocks_of(p.head_dim, s.sharers) + blocks_of(p.value_dim(), s.sharers));
  const double of_queries = keys * (1 + blocks_of(p.head_dim, s.warps / rows));
  return kParts * (half * (scores + of_keys) + s.warps * of_queries);
}

// CTAs of a multiprocessor. Registers of a thread as 816 compiled kernels had them, give or take eight.
double resident(const Problem& p, const MmaBackwardSchedule& s, const Target& target) {
  const int widest = std::max(p.head_dim, p.value_dim());
  const double sums = 8 * blocks_of(widest, s.sharers);
  const double waiting = 8 * std::ceil(2 * blocks_of(widest, 1) * s.tile_m / (32 * s.warps));
  const double registers = std::min(255.0, 1.46 * sums + 2.37 * waiting + 0.46 * s.tile_m / s.sharers +
                                               0.45 * s.tile_m + 0.25 * s.tile_n + 0.13 * widest + 30);
  const double shared = shared_bytes_mma_backward_fp32(p, s) + target.shared_reserved;
  return std::max(1.0, std::floor(std::min(target.shared_per_sm / shared,
                                           target.registers_per_sm / (32 * s.warps * registers))));
}

}  // namespace

double mma_fp32_ms(const Problem& p, const Shape& shape, const MmaBackwardSchedule& s, const Target& target) {
  constexpr double kFitGhz = 1.98;
  const double m = s.tile_m, n = s.tile_n, sms = std::max(1, target.sm_count);
  const double columns = 3 * blocks_of(p.head_dim, 1) + 2 * blocks_of(p.value_dim(), 1);
  const double tensor = kProducts * 2 * m * n * 16 * columns / machine_of(target).mma_flops;
  // Without vectors the lanes' four numbers go one by one.
  const bool own_pass = s.dq == static_cast<int>(DqWay::own_pass);
  const double added = own_pass ? 0 : m * p.head_dim / 32 * (target.capability >= 90 ? 1 : 2);
  const double busy =
      std::max(tensor, 0.3 * tensor + 4.91 * fragments(p, s) + 13.8 * m * n / 32 + 7.95 * added);
  const double tiles = tiles_of_head(p, shape, s.tile_m, s.tile_n) * shape.batch * shape.heads;
  const double ctas = std::ceil(shape.seqlen_k / n) * shape.batch * shape.kv_heads();
  const double of_sm = ctas / sms;
  const double side_by_side = std::min(resident(p, s, target), std::max(1.0, of_sm));
  // Fewer than four warps a scheduler wait for each instruction's latency; and a CTA at its barriers.
  const double exposed = std::pow(std::max(1.0, 16 / (s.warps * side_by_side)), 0.4);
  const double step = busy * exposed + 500 / side_by_side;
  const double clocks = tiles * step + ctas * (2000 + 0.8 * n * (p.head_dim + p.value_dim())) / side_by_side;
  const double passes = own_pass ? 1.4 : 1;  // seven products for five
  return clocks / sms * passes * (p.causal ? 1 + 0.5 / of_sm : std::ceil(of_sm) / of_sm) / (kFitGhz * 1e6);
}

}  // namespace flashjit::autotune
