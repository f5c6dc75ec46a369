#include <algorithm>
#include <array>

#include "autotune/space/families.hpp"

namespace flashjit::autotune {
namespace {

// fp32: with many rows, as many as shared memory has room for, K and V are split least often; few rows fill
// more of a GPU.
std::vector<Schedule> fp32_space() {
  std::vector<Schedule> space;
  for (const auto& [m, w] : std::to_array<Rows>({{128, 8}, {64, 4}, {112, 7}, {96, 6}, {32, 2}, {16, 1}})) {
    for (const int n : {64, 32, 16}) {
      for (const int ctas : {0, 2, 3}) {
        add(space,
            MmaSchedule{.tile_m = m, .tile_n = n, .warps = w, .stages = 1, .kv_apart = 1, .min_ctas = ctas});
      }
    }
  }
  return space;
}

}  // namespace

std::vector<Schedule> mma_space(const Problem& problem) {
  if (problem.dtype == DType::fp32) return fp32_space();
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
    int stages, kv_apart;
  };
  constexpr auto kPipelines = std::to_array<Pipeline>({{2, 0}, {2, 1}, {1, 1}, {3, 1}});
  for (const auto& [m, w] : std::to_array<Rows>({{128, 4}, {128, 8}, {64, 4}, {256, 8}, {192, 12}})) {
    for (const int n : {64, 128, 32, 96, 48}) {
      if (n == 48 && widest <= 128) continue;  // between 32 and 64 only where shared memory is dear
      if (n == 128 && widest > 192) continue;
      for (const auto& [stages, apart] : kPipelines) {
        if (stages == 3 && (n > 64 || m == 192)) continue;
        both({.tile_m = m, .tile_n = n, .warps = w, .stages = stages, .kv_apart = apart});
      }
    }
  }
  // More CTAs per multiprocessor than ptxas would choose; and the loop unrolled.
  for (const auto& [m, w] : std::to_array<Rows>({{128, 4}, {64, 4}, {128, 8}})) {
    for (const int n : {64, 32}) {
      for (const int ctas : {2, 3}) {
        both({.tile_m = m, .tile_n = n, .warps = w, .stages = 1, .kv_apart = 1, .min_ctas = ctas});
        both({.tile_m = m, .tile_n = n, .warps = w, .stages = 2, .kv_apart = 1, .min_ctas = ctas});
      }
      both({.tile_m = m, .tile_n = n, .warps = w, .stages = 2, .kv_apart = 1, .unroll = 2});
    }
  }
  // Ways around waiting for the maximum: exponentials before it is known, or a tile in parts.
  for (const auto& [m, w] : std::to_array<Rows>({{128, 4}, {128, 8}, {64, 4}})) {
    for (const int n : {64, 128, 32}) {
      if (n == 128 && widest > 192) continue;
      for (const int apart : {1, 0}) {
        both({.tile_m = m, .tile_n = n, .warps = w, .stages = 2, .optimistic = 1, .kv_apart = apart});
      }
      both({.tile_m = m, .tile_n = n, .warps = w, .stages = 2, .blocks = 2});
    }
  }
  // Fast on an H200 (docs/performance/mma.md) and not among the above.
  if (widest <= 64) add(space, MmaSchedule{.tile_n = 96, .q_in_regs = 1, .optimistic = 1});
  if (widest > 192) add(space, MmaSchedule{.tile_n = 128, .warps = 8, .stages = 1, .kv_apart = 1});
  // Where shared memory holds one CTA only, that CTA may as well be persistent.
  if (!problem.causal) {
    for (const auto& [m, w] : std::to_array<Rows>({{128, 8}, {128, 4}, {64, 4}})) {
      for (const int n : {128, 96, 64, 32}) {
        add(space,
            MmaSchedule{.tile_m = m, .tile_n = n, .warps = w, .stages = 1, .kv_apart = 1, .persistent = 1});
      }
    }
  }

  // Turing's wide heads: its copies wait in registers, which leaves room for few scores.
  if (widest > 128) {
    for (const auto& [m, w] : std::to_array<Rows>({{64, 4}, {96, 6}, {128, 8}})) {
      MmaSchedule s{.tile_m = m, .tile_n = 16, .warps = w, .stages = 1, .kv_apart = 1};
      add(space, s);
      s.optimistic = 1;
      add(space, s);
    }
  }

  // Few queries: no row of the tile should be empty.
  for (const auto& [m, w] : std::to_array<Rows>({{32, 2}, {16, 1}})) {
    for (const int n : {64, 128, 32}) {
      for (const auto& [stages, apart] : std::to_array<Pipeline>({{2, 1}, {3, 1}, {1, 1}})) {
        both({.tile_m = m, .tile_n = n, .warps = w, .stages = stages, .kv_apart = apart});
      }
    }
  }
  return space;
}

}  // namespace flashjit::autotune
