// The search space: every schedule worth a thought for a problem, family by family, in the order that breaks
// ties.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "autotune/backward/backward.hpp"
#include "autotune/tune.hpp"
#include "generator/legality.hpp"

namespace flashjit::autotune {
namespace {

struct Rows {
  int tile_m, warps;
};

void add(std::vector<Schedule>& space, const Schedule& schedule) {
  if (std::find(space.begin(), space.end(), schedule) == space.end()) space.push_back(schedule);
}

// fp32: a thread's tile of S is tile_m * lanes / threads rows by tile_n / lanes keys. 8x8 feeds the FMAs
// best, and wins on an H200 at head_dim 64; wide heads need fewer rows, more lanes, and fragments loaded
// ahead (bench/results/simt-h200.jsonl).
std::vector<Schedule> simt_space() {
  std::vector<Schedule> space;
  for (const auto& [m, w] :
       std::to_array<Rows>({{128, 4}, {64, 4}, {128, 8}, {64, 2}, {256, 8}, {64, 8}, {32, 2}, {16, 2}})) {
    for (const int n : {64, 32, 128, 16}) {
      for (const int lanes : {8, 16, 4}) {
        for (const int stages : {2, 1}) {
          SimtSchedule s{.tile_m = m, .tile_n = n, .warps = w, .stages = stages, .lanes = lanes};
          add(space, s);
          s.prefetch = 1;
          if (stages == 2 || lanes == 16) add(space, s);
          s.prefetch = 0;
          s.unroll = 2;
          if (stages == 2 && lanes >= 8 && n >= 32) add(space, s);
        }
      }
    }
  }
  // More CTAs per multiprocessor than ptxas would choose.
  for (const auto& [m, w] : std::to_array<Rows>({{128, 4}, {64, 4}, {64, 2}})) {
    for (const int n : {64, 32}) {
      for (const int stages : {2, 1}) {
        add(space,
            SimtSchedule{.tile_m = m, .tile_n = n, .warps = w, .stages = stages, .min_ctas = w == 2 ? 6 : 3});
      }
    }
  }
  return space;
}

std::vector<Schedule> mma_space(const Problem& problem) {
  std::vector<Schedule> space;
  const int widest = std::max(problem.head_dim, problem.value_dim());
  const auto both = [&](MmaSchedule s) {  // Q in shared memory, and in registers
    for (const int q_in_regs : {0, 1}) {
      s.q_in_regs = q_in_regs;
      add(space, s);
    }
  };
  // One tile of K and V under way, one in use; or K's and V's copies each beside the other's product.
  struct Pipeline {
    int stages, split_kv;
  };
  constexpr auto kPipelines = std::to_array<Pipeline>({{2, 0}, {2, 1}, {1, 1}, {3, 0}, {3, 1}});
  for (const auto& [m, w] : std::to_array<Rows>({{128, 4}, {128, 8}, {64, 4}, {256, 8}, {192, 12}})) {
    for (const int n : {64, 128, 32, 96, 48}) {
      if (n == 48 && widest <= 128) continue;  // between 32 and 64 only where shared memory is dear
      if (n == 128 && widest > 192) continue;
      for (const auto& [stages, split] : kPipelines) {
        if (stages == 3 && (n > 64 || m == 192 || split == 0)) continue;
        both({.tile_m = m, .tile_n = n, .warps = w, .stages = stages, .split_kv = split});
      }
    }
  }
  // More CTAs per multiprocessor than ptxas would choose; and the loop unrolled.
  for (const auto& [m, w] : std::to_array<Rows>({{128, 4}, {64, 4}, {128, 8}})) {
    for (const int n : {64, 32}) {
      for (const int ctas : {2, 3}) {
        both({.tile_m = m, .tile_n = n, .warps = w, .stages = 1, .split_kv = 1, .min_ctas = ctas});
        both({.tile_m = m, .tile_n = n, .warps = w, .stages = 2, .split_kv = 1, .min_ctas = ctas});
      }
      both({.tile_m = m, .tile_n = n, .warps = w, .stages = 2, .split_kv = 1, .unroll = 2});
    }
  }
  // Ways around waiting for the maximum: exponentials before it is known, or a tile in parts.
  for (const auto& [m, w] : std::to_array<Rows>({{128, 4}, {128, 8}, {64, 4}})) {
    for (const int n : {64, 128, 32}) {
      if (n == 128 && widest > 192) continue;
      for (const int split : {1, 0}) {
        both({.tile_m = m, .tile_n = n, .warps = w, .stages = 2, .optimistic = 1, .split_kv = split});
      }
      both({.tile_m = m, .tile_n = n, .warps = w, .stages = 2, .blocks = 2});
    }
  }
  // Fast on an H200 (docs/performance/mma.md) and not among the above.
  if (widest <= 64) add(space, MmaSchedule{.tile_n = 96, .q_in_regs = 1, .optimistic = 1});
  if (widest > 192) add(space, MmaSchedule{.tile_n = 128, .warps = 8, .stages = 1, .split_kv = 1});
  // Where shared memory holds one CTA, it may as well keep the multiprocessor.
  if (!problem.causal) {
    for (const auto& [m, w] : std::to_array<Rows>({{128, 8}, {128, 4}, {64, 4}})) {
      for (const int n : {128, 96, 64, 32}) {
        add(space,
            MmaSchedule{.tile_m = m, .tile_n = n, .warps = w, .stages = 1, .split_kv = 1, .persistent = 1});
      }
    }
  }

  // Turing's wide heads: its copies wait in registers, which leaves room for few scores.
  if (widest > 128) {
    for (const auto& [m, w] : std::to_array<Rows>({{64, 4}, {96, 6}, {128, 8}})) {
      MmaSchedule s{.tile_m = m, .tile_n = 16, .warps = w, .stages = 1, .split_kv = 1};
      add(space, s);
      s.optimistic = 1;
      add(space, s);
    }
  }

  // Few queries: no row of the tile should be empty.
  for (const auto& [m, w] : std::to_array<Rows>({{32, 2}, {16, 1}})) {
    for (const int n : {64, 128, 32}) {
      for (const auto& [stages, split] : std::to_array<Pipeline>({{2, 1}, {3, 1}, {1, 1}})) {
        both({.tile_m = m, .tile_n = n, .warps = w, .stages = stages, .split_kv = split});
      }
    }
  }
  return space;
}

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

// For tiles that do not fill whole waves: all CTAs have even shares.
void add_even_shares(std::vector<Schedule>& space, WgmmaSchedule schedule) {
  schedule.persistent = 3;
  add(space, schedule);
}

std::vector<Schedule> wgmma_space(const Problem& problem) {
  std::vector<Schedule> space;
  const int widest = std::max(problem.head_dim, problem.value_dim());
  const int order = problem.causal ? 2 : 1;  // causal tiles differ in length: longest first, off a counter
  // Narrow heads lose by waiting for each other; under a mask, where rows see different keys, all but the
  // widest do.
  const bool clusters = widest > (problem.causal ? 160 : 64);
  // All of their blocks are taken by one loop, at the end of which O is rescaled.
  const bool wide_values = problem.value_dim() > 192;
  // The winners, and their switches one at a time.
  for (WgmmaSchedule winner : wgmma_winners(problem)) {
    winner.persistent = order;
    // The widest heads take as long in pairs, but at the power cap, where pairs save 1 to 6 % of the joules.
    if (widest > 192) add(space, with_cluster(winner));
    add(space, winner);
    const auto with = [&](int WgmmaSchedule::*member, int value) {
      WgmmaSchedule s = winner;
      s.*member = value;
      add(space, s);
    };
    // A loop of two steps compiles for more than a second where tiles are wider, and gains half a percent.
    if (widest <= 64 && !problem.causal) with(&WgmmaSchedule::unroll, 2);
    if (!wide_values) with(&WgmmaSchedule::rescale_early, 1 - winner.rescale_early);
    with(&WgmmaSchedule::ping_pong, 0);
    for (const int chains : {2, 8}) with(&WgmmaSchedule::max_chains, chains);
    with(&WgmmaSchedule::o_passes, 0);
    with(&WgmmaSchedule::overlap, 0);
    with(&WgmmaSchedule::optimistic, 0);
    with(&WgmmaSchedule::persistent, 0);
    if (problem.causal) with(&WgmmaSchedule::persistent, 1);
    if (clusters) add(space, with_cluster(winner));
    add_splits(space, winner);
    add_even_shares(space, winner);
    if (clusters && !problem.causal) add_even_shares(space, with_cluster(winner));
  }
  // All tiles in reach; one query warpgroup is for few queries.
  const int passes = (problem.value_dim() + 63) / 64 == 3 ? 3 : 2;  // as its panels of 64 columns divide
  const auto keys = widest <= 64    ? std::vector{64, 128, 96, 80, 112, 144}
                    : widest <= 128 ? std::vector{128, 64, 96, 80, 112, 144}
                                    : std::vector{64, 96, 80, 48, 128, 112};
  for (const int m : {256, 192, 128, 64}) {
    for (const int n : keys) {
      for (const int stages : {4, 3, 2}) {
        if (stages == 4 && n > 64) continue;  // a block is long enough to cover the load of the next but one
        for (const int q_in_regs : {1, 0, 2}) {
          if (q_in_regs == 2 && widest <= 160) continue;  // half of Q: only where all of it does not fit
          for (const int o_passes : {1, passes}) {
            if (o_passes > 1 && (widest <= 128 || stages > 2)) continue;  // only where shared memory is short
            WgmmaSchedule s{.tile_m = m,
                            .tile_n = n,
                            .stages = stages,
                            .q_in_regs = q_in_regs,
                            .o_passes = o_passes,
                            .ping_pong = m == 64 ? 0 : 1,
                            .rescale_early = wide_values ? 0 : 1,
                            .persistent = order};
            add(space, s);
            if (clusters && m > 64) add(space, with_cluster(s));
          }
        }
      }
    }
  }
  // Short sequences without a mask, of which memory is the limit: tiles off a counter.
  if (!problem.causal && widest > 64 && widest <= 192) {
    for (const auto& [n, stages, q_in_regs] : {std::tuple(64, 2, 1), {64, 3, 0}, {128, 2, 1}}) {
      add(space, WgmmaSchedule{.tile_n = n, .stages = stages, .q_in_regs = q_in_regs, .persistent = 2});
    }
  }
  const auto rows = [&](int m, int n, int stages) {
    return WgmmaSchedule{.tile_m = m,
                         .tile_n = n,
                         .stages = stages,
                         .q_in_regs = widest > 192 ? 0 : 1,
                         .ping_pong = m == 64 ? 0 : 1,
                         .rescale_early = wide_values ? 0 : 1};
  };
  // Some 128 KB on their way, in blocks as short as that allows; and half of that, for heads that share
  // lines.
  if (widest <= 64) {
    // What was fastest somewhere (docs/performance/wgmma/short-sequences.md).
    for (const int stages : {3, 2}) add_several_ctas(space, rows(128, 64, stages), order, 2);
    for (const int stages : {3, 2}) add_several_ctas(space, rows(64, 64, stages), order, 3);
    add_several_ctas(space, rows(64, 64, 2), order, 4);
    add_several_ctas(space, rows(64, 48, 2), order, 4);
    add_splits(space, rows(64, 128, 4));
    if (widest > 32) add_splits(space, rows(64, 96, 3));
    add_splits(space, rows(128, 128, 4));
    add_even_shares(space, rows(64, 64, 4));
    add_even_shares(space, rows(128, 128, 4));
  } else if (widest <= 128) {
    add_splits(space, rows(64, 64, 4));
    add_splits(space, rows(64, 64, 3));
    add_splits(space, rows(64, 48, 3));
    add_splits(space, rows(128, 64, 4));
    add_splits(space, rows(128, 128, 2));
    add_even_shares(space, rows(64, 64, 3));
    add_even_shares(space, rows(128, 128, 2));
  } else {
    add_splits(space, rows(64, 64, 2));
    add_splits(space, rows(64, 48, 3));
    add_splits(space, rows(128, 64, 2));
    add_even_shares(space, rows(64, 48, 2));
    add_even_shares(space, rows(128, 64, 2));
  }
  return space;
}

}  // namespace

std::vector<Candidate> search_space(const Problem& problem, const Target& target) {
  std::vector<Candidate> candidates;
  for (const Family family : {Family::wgmma, Family::mma, Family::simt}) {
    if (!legal(problem, family, target)) continue;  // family_note() says why
    const std::vector<Schedule> space = problem.pass == Pass::backward ? backward_space(problem, family)
                                        : family == Family::wgmma      ? wgmma_space(problem)
                                        : family == Family::mma        ? mma_space(problem)
                                                                       : simt_space();
    for (const Schedule& schedule : space) {
      Candidate candidate;
      candidate.schedule = schedule;
      candidate.pruned = legal(problem, schedule, target).reason;
      candidates.push_back(std::move(candidate));
    }
  }
  return candidates;
}

std::string family_note(const Problem& problem, const Target& target) {
  std::string note;
  for (const Family family : {Family::wgmma, Family::mma, Family::simt}) {
    // That a family computes another dtype is no news; that a newer one passes this GPU over is.
    const bool other_dtype = (problem.dtype == DType::fp32) != (family == Family::simt);
    const Legality legality = legal(problem, family, target);
    if (other_dtype || legality || (family == Family::wgmma && target.capability != 90)) continue;
    note += (note.empty() ? "" : "; ") + legality.reason;
  }
  return note;
}

std::vector<std::string> unserved_notes(const Problem& problem, const Target& target,
                                        std::string_view asked) {
  std::vector<std::string> notes;
  for (const Family family : {Family::simt, Family::mma, Family::wgmma}) {
    if (!asked.empty() && asked != to_string(family)) continue;
    const Legality legality = legal(problem, family, target);
    notes.push_back(fmt::format("{}: {}", to_string(family),
                                legality ? "no schedule of its search space fits" : legality.reason));
  }
  return notes;
}

}  // namespace flashjit::autotune
