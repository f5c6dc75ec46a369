#include <algorithm>
#include <tuple>

#include <array>

#include "autotune/space/families.hpp"

namespace flashjit::autotune {
namespace {

// What won on an H200 for head dims like these, best first (docs/performance/wgmma/row-ends.md). The rule:
// as many rows per load of K and V as registers allow, and of those tiles the one with the longest blocks
// of keys.
std::vector<WgmmaSchedule> wgmma_winners(const Problem& problem) {
  const int widest = std::max(problem.head_dim, problem.value_dim());
  if (widest <= 64) {
    return {{.tile_m = 256, .tile_n = 64, .stages = 4, .q_in_regs = 0},
            {.tile_m = 192, .tile_n = 128, .stages = 4, .q_in_regs = 0}};
  }
  if (widest <= 80) {
    return {{.tile_m = 256, .tile_n = 64, .stages = 3, .q_in_regs = 0},
            {.tile_m = 192, .tile_n = 96, .q_in_regs = 0},
            {.tile_m = 256, .tile_n = 48, .stages = 4, .q_in_regs = 0}};
  }
  if (widest <= 120) {
    return {{.tile_m = 192, .tile_n = 96, .q_in_regs = 0},
            {.tile_m = 192, .tile_n = 64, .stages = 3, .q_in_regs = 0}};
  }
  if (widest <= 128) {
    const WgmmaSchedule wide{.tile_m = 128, .tile_n = 128};
    const WgmmaSchedule tall{.tile_m = 192, .tile_n = 64, .stages = 4, .q_in_regs = 0};
    return problem.causal ? std::vector{tall, wide} : std::vector{wide, tall};
  }
  if (widest <= 160) {
    return {{.tile_m = 192, .tile_n = 64, .q_in_regs = 0, .o_passes = 3},
            {.tile_m = 128, .tile_n = 96, .q_in_regs = 0, .o_passes = 3}};
  }
  if (widest <= 192) return {{.tile_m = 128, .tile_n = 64}, {.tile_m = 128, .tile_n = 96, .q_in_regs = 0}};
  return {{.tile_m = 128, .tile_n = 64, .q_in_regs = 0, .o_passes = 2, .rescale_early = 0}};
}

WgmmaSchedule with_cluster(WgmmaSchedule schedule) {
  schedule.cluster = 2;
  return schedule;
}

WgmmaSchedule at_first_level(WgmmaSchedule schedule) {
  schedule.ptxas = 1;
  return schedule;
}

// For many short tiles: CTAs that share a multiprocessor, whose beginnings and ends hide behind each other's
// steps.
void add_several_ctas(std::vector<Schedule>& space, WgmmaSchedule schedule, int order, int ctas) {
  schedule.persistent = order;
  schedule.min_ctas = ctas;
  for (const int q_in_regs : {1, 0}) {
    schedule.q_in_regs = q_in_regs;
    add(space, schedule);
  }
}

// For fewer tiles than multiprocessors: their keys are shared out.
void add_splits(std::vector<Schedule>& space, WgmmaSchedule schedule) {
  schedule.persistent = 0;
  schedule.o_passes = 1;
  for (const int splits : {8, 6, 5, 4, 3, 2}) {
    schedule.splits = splits;
    add(space, schedule);
  }
}

// What family wgmma's schedules for a problem have in common.
struct Wgmma {
  int widest;  // head_dim or head_dim_v
  bool causal;
  // All of their blocks are taken by one loop, at the end of which O is rescaled.
  bool wide_values;
  // Whether clusters are worth trying. Narrow heads lose by waiting for each other; under a mask, where rows
  // see different keys, all but the widest do.
  bool clusters;
  int order;  // of tiles; causal ones differ in length: longest first, off a counter
};

// Whether these are the kernels that take longest to compile, up to a second on a busy host. At ptxas's first
// level they take a tenth less time to compile, and as long to run, or 0.3 % longer
// (docs/performance/wgmma/compile.md).
bool compiles_long(const WgmmaSchedule& even, const Wgmma& of) {
  if (of.causal) return false;
  return of.widest > 192 ? even.cluster == 2 : of.widest > 120 && even.tile_m * even.tile_n == 128 * 128;
}

// For tiles that do not fill whole waves: all CTAs have even shares.
void add_even_shares(std::vector<Schedule>& space, WgmmaSchedule schedule, const Wgmma& of) {
  schedule.persistent = 3;
  add(space, compiles_long(schedule, of) ? at_first_level(schedule) : schedule);
}

// Whether the largest tiles of such heads gain half a percent at ptxas's first level. Others are as fast, or
// lose up to 4 % (docs/performance/wgmma/compile.md).
bool gains_by_first_level(int widest, const WgmmaSchedule& winner) {
  return widest > 56 && widest <= 96 && winner.tile_m * winner.tile_n >= 256 * 64;
}

// Added before what takes as long to run and longer to compile: the space's order breaks ties.
void add_first_level(std::vector<Schedule>& space, const WgmmaSchedule& winner, const Wgmma& of) {
  WgmmaSchedule first = at_first_level(winner);
  if (!of.causal) add_even_shares(space, of.clusters ? with_cluster(first) : first, of);
  if (of.clusters) add(space, with_cluster(first));
  add(space, first);
  if (of.causal && first.stages == 2) {
    first.stages = 3;
    add(space, first);
  }
}

// The winners, and their switches one at a time.
void add_winners(std::vector<Schedule>& space, const Problem& problem, const Wgmma& of) {
  for (WgmmaSchedule winner : wgmma_winners(problem)) {
    winner.persistent = of.order;
    // The widest heads take as long in pairs, except at the power cap, where pairs save 1 to 6 % of the
    // joules.
    if (of.widest > 192) add(space, with_cluster(winner));
    if (gains_by_first_level(of.widest, winner)) add_first_level(space, winner, of);
    add(space, winner);
    const auto with = [&](int WgmmaSchedule::*member, int value) {
      WgmmaSchedule s = winner;
      s.*member = value;
      add(space, s);
    };
    // A loop of two steps compiles for more than a second where tiles are wider, and gains half a percent.
    if (of.widest <= 64 && !of.causal) with(&WgmmaSchedule::unroll, 2);
    if (!of.wide_values) with(&WgmmaSchedule::rescale_early, 1 - winner.rescale_early);
    with(&WgmmaSchedule::ping_pong, 0);
    for (const int chains : {2, 8}) with(&WgmmaSchedule::max_chains, chains);
    with(&WgmmaSchedule::o_passes, 0);
    with(&WgmmaSchedule::overlap, 0);
    with(&WgmmaSchedule::optimistic, 0);
    with(&WgmmaSchedule::persistent, 0);
    if (of.causal) with(&WgmmaSchedule::persistent, 1);
    if (of.clusters) add(space, with_cluster(winner));
    add_splits(space, winner);
    add_even_shares(space, winner, of);
    if (of.clusters && !of.causal) add_even_shares(space, with_cluster(winner), of);
  }
}

// All tiles in reach; one query warpgroup is for few queries.
void add_tiles(std::vector<Schedule>& space, const Problem& problem, const Wgmma& of) {
  const int passes = (problem.value_dim() + 63) / 64 == 3 ? 3 : 2;  // which divides its panels of 64 columns
  const auto keys = of.widest <= 64    ? std::vector{64, 128, 96, 80, 112, 144}
                    : of.widest <= 128 ? std::vector{128, 64, 96, 80, 112, 144}
                                       : std::vector{64, 96, 80, 48, 128, 112};
  for (const int m : {256, 192, 128, 64}) {
    for (const int n : keys) {
      for (const int stages : {4, 3, 2}) {
        if (stages == 4 && n > 64) continue;  // a block is long enough to cover the load of the next but one
        for (const int q_in_regs : {1, 0, 2}) {
          if (q_in_regs == 2 && of.widest <= 160) continue;  // half of Q: only where all of it does not fit
          for (const int o_passes : {1, passes}) {
            // Only where shared memory is short.
            if (o_passes > 1 && (of.widest <= 128 || stages > 2)) continue;
            WgmmaSchedule s{.tile_m = m,
                            .tile_n = n,
                            .stages = stages,
                            .q_in_regs = q_in_regs,
                            .o_passes = o_passes,
                            .ping_pong = m == 64 ? 0 : 1,
                            .rescale_early = of.wide_values ? 0 : 1,
                            .persistent = of.order};
            add(space, s);
            if (of.clusters && m > 64) add(space, with_cluster(s));
          }
        }
      }
    }
  }
}

// Tiles that share out their keys or share a multiprocessor: with some 128 KB on their way, in blocks as
// short as that allows; and with half of that, for heads that share lines of L2.
void add_shared(std::vector<Schedule>& space, const Wgmma& of) {
  const auto rows = [&](int m, int n, int stages) {
    return WgmmaSchedule{.tile_m = m,
                         .tile_n = n,
                         .stages = stages,
                         .q_in_regs = of.widest > 192 ? 0 : 1,
                         .ping_pong = m == 64 ? 0 : 1,
                         .rescale_early = of.wide_values ? 0 : 1};
  };
  if (of.widest <= 64) {
    // What was fastest somewhere (docs/performance/wgmma/short-sequences.md).
    for (const int stages : {3, 2}) add_several_ctas(space, rows(128, 64, stages), of.order, 2);
    for (const int stages : {3, 2}) add_several_ctas(space, rows(64, 64, stages), of.order, 3);
    add_several_ctas(space, rows(64, 64, 2), of.order, 4);
    add_several_ctas(space, rows(64, 48, 2), of.order, 4);
    add_splits(space, rows(64, 128, 4));
    if (of.widest > 32) add_splits(space, rows(64, 96, 3));
    add_splits(space, rows(128, 128, 4));
    add_even_shares(space, rows(64, 64, 4), of);
    add_even_shares(space, rows(128, 128, 4), of);
  } else if (of.widest <= 128) {
    add_splits(space, rows(64, 64, 4));
    add_splits(space, rows(64, 64, 3));
    add_splits(space, rows(64, 48, 3));
    add_splits(space, rows(128, 64, 4));
    add_splits(space, rows(128, 128, 2));
    add_even_shares(space, rows(64, 64, 3), of);
    add_even_shares(space, rows(128, 128, 2), of);
  } else {
    add_splits(space, rows(64, 64, 2));
    add_splits(space, rows(64, 48, 3));
    add_splits(space, rows(128, 64, 2));
    add_even_shares(space, rows(64, 48, 2), of);
    add_even_shares(space, rows(128, 64, 2), of);
  }
}

// fp32: K and V are split least often where CTAs have many rows, and wide heads leave room for few. ptxas's
// first level needs fewer registers, and is slower where producers are late.
std::vector<Schedule> fp32_space() {
  struct Tile {
    int m, n;
  };
  struct Ctas {
    int cluster, splits;
  };
  std::vector<Schedule> space;
  for (const auto& [m, n] : std::to_array<Tile>({{192, 64},
                                                 {192, 48},
                                                 {128, 64},
                                                 {128, 80},
                                                 {128, 48},
                                                 {128, 32},
                                                 {64, 64},
                                                 {64, 48},
                                                 {64, 32}})) {
    for (const int stages : {2, 1}) {
      for (const int q_in_regs : {1, 2, 0}) {
        if (q_in_regs != 0 && m == 64) continue;
        for (const auto& [cluster, splits] : std::to_array<Ctas>({{1, 1}, {2, 1}, {1, 2}})) {
          for (const int level : {3, 1}) {
            add(space, WgmmaSchedule{.tile_m = m,
                                     .tile_n = n,
                                     .stages = stages,
                                     .q_in_regs = q_in_regs,
                                     .optimistic = 0,
                                     .ping_pong = 0,
                                     .overlap = 0,
                                     .persistent = 0,
                                     .cluster = cluster,
                                     .splits = splits,
                                     .ptxas = level});
          }
        }
      }
    }
  }
  return space;
}

}  // namespace

std::vector<Schedule> wgmma_space(const Problem& problem) {
  if (problem.dtype == DType::fp32) return fp32_space();
  std::vector<Schedule> space;
  const int widest = std::max(problem.head_dim, problem.value_dim());
  const Wgmma of{.widest = widest,
                 .causal = problem.causal,
                 .wide_values = problem.value_dim() > 192,
                 .clusters = widest > (problem.causal ? 160 : 64),
                 .order = problem.causal ? 2 : 1};
  add_winners(space, problem, of);
  add_tiles(space, problem, of);
  // Short sequences without a mask, where memory is the limit: tiles off a counter.
  if (!problem.causal && widest > 192) {
    WgmmaSchedule winner = wgmma_winners(problem).front();
    winner.persistent = 2;
    add(space, winner);
  } else if (!problem.causal && widest > 64) {
    for (const auto& [n, stages, q_in_regs] : {std::tuple(64, 2, 1), {64, 3, 0}, {128, 2, 1}}) {
      add(space, WgmmaSchedule{.tile_n = n, .stages = stages, .q_in_regs = q_in_regs, .persistent = 2});
    }
  }
  add_shared(space, of);
  return space;
}

}  // namespace flashjit::autotune
