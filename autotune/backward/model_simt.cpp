// Family simt's backward pass, as the sum of what FMA, loads from shared memory and additions to dQ take:
// with few warps little of it runs side by side. The weights were fitted to 1,004 timings of 70 problems on
// an H200, within 11 % (root mean square; docs/performance/simt.md).
#include "autotune/backward/model_fp32.hpp"

#include <algorithm>
#include <cmath>

#include "autotune/model/step.hpp"
#include "generator/families/simt_backward_layout.hpp"

namespace flashjit::autotune {
namespace {

using simt_backward::Layout;
using simt_backward::layout_of;
using simt_backward::Sharing;

// What one tile of queries and one of keys take of each unit of a multiprocessor.
struct Tile {
  double multiplies = 0;  // multiply-adds
  double loads = 0;       // instructions of warps that load 16 bytes a lane from shared memory
  double weights = 0;     // scores that become weights, by warp
  double added = 0;       // lines of 128 bytes that are added to dQ
  double chain = 0;       // additions of two floats that follow each other in a score
};

// A kernel of the pass: its tiles, and what its CTAs are.
struct Kernel {
  Tile tile;
  double shared_bytes = 0;
  double ctas = 0;
  double longest = 0;  // tiles of the CTA that has most
  double columns = 0;  // of gradients that a CTA writes at its end, times its rows: a clock each
};

// S and dP, which both kernels form. S in two floats counts as three products.
Tile scores(const Problem& p, const SimtBackwardSchedule& s, const Layout& layout) {
  constexpr double kBlocked = 9.0 / 8;  // sums of eight dims are added up
  const double pairs = 1.0 * s.tile_m * s.tile_n;
  const bool twofold = simt_backward::careful(s) || p.head_dim <= 16;
  return {.multiplies = pairs * kBlocked * (p.head_dim * (twofold ? 3 : 1) + p.value_dim()),
          .loads = s.warps * (p.head_dim + p.value_dim()) / 4.0 * (layout.rows + layout.keys),
          .weights = 1.0 * layout.rows * layout.keys * s.warps,
          .chain = twofold ? 1.0 * p.head_dim : 0};
}

// A gradient of keys: each row of the tile of queries is loaded once.
void add_of_keys(Tile& tile, const Sharing& sharing, const SimtBackwardSchedule& s, int dim) {
  tile.multiplies += 1.0 * s.tile_m * s.tile_n * dim;
  tile.loads += 1.0 * s.warps * s.tile_m * (sharing.loads_of_weights() + sharing.loads_of_columns());
}

// dQ: weights are loaded for four keys at a time.
void add_of_queries(Tile& tile, const Sharing& sharing, const SimtBackwardSchedule& s, int dim) {
  tile.multiplies += 1.0 * s.tile_m * s.tile_n * dim;
  tile.loads += s.warps * s.tile_n / 4.0 * (sharing.own + 4 * sharing.loads_of_columns());
}

// How much longer instructions take where so few warps wait for their latencies. Below four, schedulers idle.
double exposure(double warps) {
  return std::pow(std::max(1.0, 8 / warps), 0.298) * std::max(1.0, 4 / warps);
}

double kernel_clocks(const Kernel& kernel, double tiles, const SimtBackwardSchedule& s, const Target& target,
                     bool causal) {
  const double of_sm = kernel.ctas / std::max(1, target.sm_count);
  const double fitting = std::floor(std::min(
      target.shared_per_sm / (kernel.shared_bytes + target.shared_reserved), 512 / (32.0 * s.warps)));
  const double side_by_side = std::max(1.0, std::min(fitting, of_sm));
  const double busy = 1.088 * kernel.tile.multiplies / machine_of(target).fp32_lanes +
                      1.408 * kernel.tile.loads + 13.33 * kernel.tile.weights + 3.29 * kernel.tile.added;
  const double chain = 18.3 * kernel.tile.chain;
  const double all =
      tiles * (busy * exposure(s.warps * side_by_side) + chain / side_by_side) + kernel.ctas * kernel.columns;
  const double longest = kernel.longest * (busy * exposure(s.warps) + chain) + kernel.columns;
  return clocks_of_waves(all / kernel.ctas, longest, of_sm, causal);
}

}  // namespace

double simt_ms(const Problem& problem, const Shape& shape, const SimtBackwardSchedule& schedule,
               const Target& target) {
  constexpr double kFitGhz = 1.98;
  const Layout layout = layout_of(problem, schedule);
  const bool own_pass = schedule.dq == static_cast<int>(DqWay::own_pass);
  const double heads = 1.0 * shape.batch * shape.heads;
  const double tiles = heads * tiles_of_head(problem, shape, schedule.tile_m, schedule.tile_n);
  const double tiles_m = std::ceil(1.0 * shape.seqlen_q / schedule.tile_m),
               tiles_n = std::ceil(1.0 * shape.seqlen_k / schedule.tile_n);

  Kernel keys{.tile = scores(problem, schedule, layout),
              .shared_bytes = 4.0 * layout.floats_keys,
              .ctas = tiles_n * shape.batch * shape.kv_heads(),
              .longest = tiles_m * shape.heads / shape.kv_heads(),
              .columns = schedule.tile_n * (problem.head_dim + problem.value_dim()) / 2.0};
  add_of_keys(keys.tile, layout.of_k, schedule, problem.head_dim);
  add_of_keys(keys.tile, layout.of_v, schedule, problem.value_dim());
  if (!own_pass) {
    add_of_queries(keys.tile, layout.of_q, schedule, problem.head_dim);
    // Four numbers at a time from sm_90 on; else each touches the line by itself.
    keys.tile.added = schedule.tile_m * problem.head_dim / 32.0 * (target.capability >= 90 ? 1 : 4);
  }
  double clocks = kernel_clocks(keys, tiles, schedule, target, problem.causal);
  if (own_pass) {
    Kernel queries{.tile = scores(problem, schedule, layout),
                   .shared_bytes = 4.0 * layout.floats_queries,
                   .ctas = tiles_m * heads,
                   .longest = tiles_n,
                   .columns = 1.0 * schedule.tile_m * problem.head_dim};
    add_of_queries(queries.tile, layout.of_q, schedule, problem.head_dim);
    clocks += kernel_clocks(queries, tiles, schedule, target, problem.causal);
  }
  return clocks / (kFitGhz * 1e6);
}

}  // namespace flashjit::autotune
