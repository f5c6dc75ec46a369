#include "generator/families/mma_backward_fp32.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "generator/families/mma_backward_layout.hpp"
#include "templates/params/backward_rows.h"

namespace flashjit {

using mma_backward::adds_dq;
using mma_backward::has_ds_tile;

namespace {

// The tiles, each with 16 keys for two warps, or for four that share them; and the widest head for which
// ptxas spills no register, at its first level, on any arch (docs/performance/mma-fp32.md).
struct Tile {
  int tile_m, tile_n, warps, sharers;
  int widest;
};
constexpr Tile kTiles[] = {{32, 64, 8, 1, 136}, {64, 64, 8, 1, 104}, {32, 32, 4, 1, 112}, {64, 96, 12, 1, 48},
                           {64, 32, 8, 2, 160}, {32, 32, 8, 2, 256}, {32, 48, 6, 1, 128}, {32, 96, 12, 1, 80},
                           {16, 32, 4, 1, 144}, {16, 16, 2, 1, 128}};

int widest_of(const Problem& problem) {
  return std::max(problem.head_dim, problem.value_dim());
}

MmaBackwardSchedule schedule_of(const Tile& tile, int dq) {
  return {.tile_m = tile.tile_m,
          .tile_n = tile.tile_n,
          .warps = tile.warps,
          .stages = 1,
          .sharers = tile.sharers,
          .dq = dq};
}

std::string short_name(const MmaBackwardSchedule& s) {
  return fmt::format("m{}n{}w{}{}", s.tile_m, s.tile_n, s.warps, s.sharers == 2 ? "sp2" : "");
}

// Shared memory of one CTA, in bytes from its start: the parts of a tile of K, of V, of Q, of dO and of dS^T,
// then P^T in fp32, and LSE and delta of the tile's rows.
struct SharedLayout {
  int offset_v = 0, offset_q = 0, offset_dout = 0, offset_ds = 0, offset_p = 0, offset_rows = 0;
  int total = 0;
};

SharedLayout layout_of(const Problem& problem, const MmaBackwardSchedule& s) {
  const int row_qk = kSplitParts * pitch_of(problem.head_dim),
            row_v = kSplitParts * pitch_of(problem.value_dim());
  SharedLayout layout;
  layout.offset_v = s.tile_n * row_qk;
  layout.offset_q = layout.offset_v + s.tile_n * row_v;
  layout.offset_dout = layout.offset_q + s.tile_m * row_qk;
  layout.offset_ds = layout.offset_dout + s.tile_m * row_v;
  layout.offset_p = layout.offset_ds + (has_ds_tile(s) ? s.tile_n * kSplitParts * pitch_of(s.tile_m) : 0);
  layout.offset_rows = layout.offset_p + s.tile_n * s.tile_m * 4;
  layout.total = layout.offset_rows + 2 * s.tile_m * 4;
  return layout;
}

// The widest head for which the kernel that owns query rows spills no register.
constexpr int kWidestQueries = 208;

std::map<std::string, bool> sections_of(const Problem& problem, const Target& target) {
  return {
      {"bf16", true},  // the parts
      {"fp16", false},
      {"causal", problem.causal},
      {"lse", false},
      {"mma_k16", true},
      {"apart", true},
      {"together", true},
      {"swapped", false},
      {"cvt_pairs", true},
      {"stmatrix", target.capability >= 90},
      {"red_vectors", target.capability >= 90},
  };
}

Recipe recipe_keys(const Problem& problem, const MmaBackwardSchedule& s, const Target& target) {
  const SharedLayout layout = layout_of(problem, s);
  Recipe recipe;
  recipe.kernel = "kernels/backward_mma_fp32.cu";
  recipe.ptxas = 1;  // fewer registers, as in the forward pass
  recipe.constants = {
      number("kHeadDim", problem.head_dim, "columns of Q, K, dQ and dK"),
      number("kHeadDimV", problem.value_dim(), "columns of V, dO and dV"),
      number("kTileM", s.tile_m, "query rows per step"),
      number("kTileN", s.tile_n, "keys per CTA"),
      number("kThreads", 32 * s.warps, "per CTA, half of them for dV, half for dK"),
      number("kSharers", s.sharers, "warps with the same keys, in either half"),
      number("kOffsetV", layout.offset_v, "bytes from the start of shared memory to V"),
      number("kOffsetQ", layout.offset_q, "to Q"),
      number("kOffsetDout", layout.offset_dout, "to dO"),
  };
  if (has_ds_tile(s)) recipe.constants.push_back(number("kOffsetDs", layout.offset_ds, "to dS^T"));
  recipe.constants.push_back(number("kOffsetP", layout.offset_p, "to P^T, which is not split"));
  recipe.constants.push_back(number("kOffsetRows", layout.offset_rows, "to LSE and delta of the rows"));
  recipe.sections = sections_of(problem, target);
  recipe.sections["dq_sum"] = adds_dq(s);
  recipe.sections["ds_tile"] = has_ds_tile(s);
  recipe.sections["shared_keys"] = s.sharers == 2;
  // Three CTAs fit; under a mask ptxas would take three registers too many for that.
  const bool three = s.tile_m == 32 && s.tile_n == 32 && s.sharers == 1 && widest_of(problem) <= 64;
  recipe.sections["min_ctas"] = three;
  if (three)
    recipe.constants.push_back(number("kMinCtas", 3, "CTAs per multiprocessor that registers must allow"));
  recipe.geometry = {.grid = Grid::key_tiles,
                     .tile_m = s.tile_m,
                     .tile_n = s.tile_n,
                     .threads = 32 * s.warps,
                     .shared_bytes = layout.total};
  return recipe;
}

Recipe recipe_queries(const Problem& problem, const Target& target) {
  const MmaBackwardQueries layout = queries_mma_backward_fp32(problem, target);
  Recipe recipe;
  recipe.kernel = "kernels/backward_mma_fp32_dq.cu";
  recipe.suffix = "_dq";
  recipe.constants = {
      number("kHeadDim", problem.head_dim, "columns of Q, K and dQ"),
      number("kHeadDimV", problem.value_dim(), "columns of V and dO"),
      number("kTileM", layout.tile_m(), "query rows per CTA"),
      number("kTileN", layout.tile_n, "keys per step"),
      number("kThreads", 32 * layout.warps, "per CTA"),
      number("kOffsetDout", layout.offset_dout, "bytes from the start of shared memory to dO"),
      number("kOffsetK", layout.offset_k, "to K"),
      number("kOffsetV", layout.offset_v, "to V"),
  };
  recipe.sections = sections_of(problem, target);
  recipe.sections["swapped"] = true;
  recipe.ptxas = 1;
  recipe.geometry = {.tile_m = layout.tile_m(), .threads = 32 * layout.warps, .shared_bytes = layout.total};
  return recipe;
}

}  // namespace

Legality legal_mma_backward_fp32(const Problem& problem, const MmaBackwardSchedule& s, const Target& target) {
  if (s.stages != 1) return {"fp32 is split on its way through registers, with stages 1"};
  const auto* const tile = std::find_if(std::begin(kTiles), std::end(kTiles),
                                        [&](const Tile& one) { return schedule_of(one, s.dq) == s; });
  if (tile == std::end(kTiles)) {
    std::string names;
    for (const Tile& one : kTiles) names += (names.empty() ? "" : ", ") + short_name(schedule_of(one, s.dq));
    return {fmt::format("fp32 has the tiles {}, not {}", names, short_name(s))};
  }
  const int widest = widest_of(problem);
  if (widest > tile->widest) {
    return {
        fmt::format("tile {}x{} with {} warps has registers enough up to head_dim {}, this is {}; it would "
                    "spill",
                    s.tile_m, s.tile_n, s.warps, tile->widest, widest)};
  }
  if (!adds_dq(s)) {
    if (widest > kWidestQueries) {
      return {fmt::format("dq 0 has registers enough up to head_dim {}, this is {}; it would spill",
                          kWidestQueries, widest)};
    }
    const MmaBackwardQueries queries = queries_mma_backward_fp32(problem, target);
    if (queries.total > target.shared_per_cta) {
      return too_much_shared(fmt::format("dq 0 with {} rows in three parts", queries.tile_m()), queries.total,
                             target);
    }
  }
  const int shared = layout_of(problem, s).total;
  if (shared > target.shared_per_cta)
    return too_much_shared(fmt::format("tile {}x{} in three parts", s.tile_m, s.tile_n), shared, target);
  return {};
}

std::vector<MmaBackwardSchedule> schedules_mma_backward_fp32() {
  std::vector<MmaBackwardSchedule> schedules;
  for (const int dq : {1, 0}) {
    for (const Tile& tile : kTiles) schedules.push_back(schedule_of(tile, dq));
  }
  return schedules;
}

// The first that fits. With fewer rows K and V are split more often.
MmaBackwardQueries queries_mma_backward_fp32(const Problem& problem, const Target& target) {
  constexpr std::pair<int, int> kWishes[] = {{8, 32}, {6, 32}, {6, 16}, {5, 16}, {4, 16}, {3, 16}, {2, 16}};
  const int row_qk = kSplitParts * pitch_of(problem.head_dim),
            row_v = kSplitParts * pitch_of(problem.value_dim());
  MmaBackwardQueries layout;
  for (const auto& [warps, tile_n] : kWishes) {
    layout.warps = warps, layout.tile_n = tile_n;
    layout.offset_dout = 16 * warps * row_qk;
    layout.offset_k = layout.offset_dout + 16 * warps * row_v;
    layout.offset_v = layout.offset_k + tile_n * row_qk;
    layout.total = layout.offset_v + tile_n * row_v;
    if (layout.total <= target.shared_per_cta) break;
  }
  return layout;
}

int shared_bytes_mma_backward_fp32(const Problem& problem, const MmaBackwardSchedule& s) {
  return layout_of(problem, s).total;
}

Recipe recipe_delta_fp32(const Problem& problem, bool clears_dq, const Target& target) {
  Recipe recipe;
  recipe.kernel = "kernels/backward_mma_fp32_preprocess.cu";
  recipe.suffix = "_preprocess";
  recipe.constants = {
      number("kHeadDimV", problem.value_dim(), "columns of O and dO"),
      number("kRows", kBackwardRowPadding, "per CTA"),
      number("kThreads", 2 * kBackwardRowPadding, "per CTA, a warp for 16 rows"),
  };
  recipe.sections = sections_of(problem, target);
  recipe.sections["together"] = false;
  recipe.sections["clear"] = clears_dq;
  recipe.sections["row_parts"] = false;
  if (clears_dq) recipe.constants.push_back(number("kHeadDim", problem.head_dim, "columns of Q and dQ"));
  recipe.geometry = {.tile_m = kBackwardRowPadding, .pads = true, .threads = 2 * kBackwardRowPadding};
  return recipe;
}

std::vector<Recipe> recipes_mma_backward_fp32(const Problem& problem, const MmaBackwardSchedule& s,
                                              const Target& target) {
  return {recipe_delta_fp32(problem, adds_dq(s), target), recipe_keys(problem, s, target),
          adds_dq(s) ? recipe_mma_sum(problem, target) : recipe_queries(problem, target)};
}

}  // namespace flashjit
