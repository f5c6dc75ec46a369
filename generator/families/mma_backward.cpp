// Family mma, backward: which schedules are legal, and what its templates are filled with.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "generator/recipe.hpp"
#include "templates/params/backward.h"

namespace flashjit {
namespace {

// A row of 16-bit elements, padded to whole 16-element steps of mma (templates/parts/mma/shared_tile.cuh).
int pitch_of(int head_dim) {
  return (head_dim + 15) / 16 * 32;
}

// The kernel that owns keys: shared memory of one CTA, and how its warps share out dQ.
struct KeysLayout {
  int tile_k = 0, tile_v = 0;  // bytes of a tile
  int tile_q = 0, tile_dout = 0;
  int stage = 0;   // Q, dO, LSE and delta of one step
  int tile_p = 0;  // P^T in fragments, and dS^T
  int total = 0;
  int dq_warps_m = 1;    // warps side by side down the rows of dQ
  int dq_row_tiles = 1;  // 16-row tiles of each
  int dq_columns = 16;   // and columns
};

// Whether dS^T goes through shared memory: for dQ, or to the warp with the same keys.
bool has_ds_tile(const MmaBackwardSchedule& s) {
  return s.dq != static_cast<int>(DqWay::own_pass) || s.split == 2;
}

KeysLayout keys_layout(const Problem& problem, const MmaBackwardSchedule& s) {
  KeysLayout layout;
  layout.tile_k = s.tile_n * pitch_of(problem.head_dim);
  layout.tile_v = s.tile_n * pitch_of(problem.value_dim());
  layout.tile_q = s.tile_m * pitch_of(problem.head_dim);
  layout.tile_dout = s.tile_m * pitch_of(problem.value_dim());
  layout.stage = layout.tile_q + layout.tile_dout + 8 * s.tile_m;
  layout.tile_p = s.tile_n * s.tile_m * 2;
  const int tiles_ds = has_ds_tile(s) ? s.stages : 0;
  layout.total = layout.tile_k + layout.tile_v + s.stages * layout.stage + (1 + tiles_ds) * layout.tile_p;
  // The least work of any warp, then the fewest fragments to load for it. Columns are a power of two, so that
  // a warp's first chunk and its steps from there share no bit (templates/parts/mma/shared_tile.cuh).
  int least = 1 << 30;
  for (int warps_m = 1; warps_m <= s.warps; warps_m *= 2) {
    if (s.warps % warps_m != 0 || s.tile_m / 16 % warps_m != 0) continue;
    const int row_tiles = s.tile_m / 16 / warps_m, warps_d = s.warps / warps_m;
    int column_tiles = 1;
    while (column_tiles * warps_d * 16 < problem.head_dim) column_tiles *= 2;
    const int cost = row_tiles * column_tiles * 100 + row_tiles + column_tiles;
    if (cost >= least) continue;
    least = cost;
    layout.dq_warps_m = warps_m;
    layout.dq_row_tiles = row_tiles;
    layout.dq_columns = 16 * column_tiles;
  }
  return layout;
}

// The kernel that owns query rows, where dQ has a pass of its own.
struct QueriesLayout {
  int row_tiles = 1;  // 16-row tiles of a warp
  int warps = 4;
  int tile_n = 32;  // keys per step
  int stages = 2;
  int slot = 0;   // bytes of a tile of K and of V
  int total = 0;  // bytes of shared memory
  [[nodiscard]] int tile_m() const { return 16 * row_tiles * warps; }
};

// The first that fits of what is fastest with room enough. 32 rows a warp halve its reads of K and V, but
// beside 256 columns of dQ only 16 fit in registers; with 64 keys a step 64 columns spilled on Hopper.
QueriesLayout queries_layout(const Problem& problem, const Target& target) {
  const int row_bytes = pitch_of(problem.head_dim) + pitch_of(problem.value_dim());
  const bool wide = problem.head_dim > 128;
  const bool narrow = problem.head_dim <= 64;
  const QueriesLayout wishes[] = {
      {wide ? 1 : 2, wide ? 8 : 4,
       wide     ? 64
       : narrow ? 48
                : 32,
       2},
      {wide ? 1 : 2, wide ? 8 : 4, 32, 1},
      {1, 4, 32, 1},
      {1, 4, 16, 1},
      {1, 2, 16, 1},
      {1, 1, 16, 1},
  };
  QueriesLayout layout;
  for (const QueriesLayout& wish : wishes) {
    if (target.capability < 80 && wish.stages > 1) continue;
    layout = wish;
    layout.slot = layout.tile_n * row_bytes;
    layout.total = layout.tile_m() * row_bytes + layout.stages * layout.slot;
    if (layout.total <= target.shared_per_cta) break;
  }
  return layout;
}

std::string number(int value) {
  return fmt::format("{}", value);
}

std::string kilobytes(int bytes) {
  return fmt::format("{} KB", (bytes + 1023) / 1024);
}

std::map<std::string, bool> sections_of(const Problem& problem, const Target& target) {
  const bool ampere = target.capability >= 80;
  return {
      {"bf16", problem.dtype == DType::bf16},
      {"fp16", problem.dtype == DType::fp16},
      {"causal", problem.causal},
      {"lse", false},
      {"async", ampere},
      {"one_place", true},
      {"mma_k16", ampere},
      {"cvt_pairs", ampere},
      {"stmatrix", target.capability >= 90},
      {"red_vectors", target.capability >= 90},
      {"min_ctas", false},
  };
}

// Registers of one thread of the kernel that owns keys, estimated: its gradient; its scores or its part of
// dQ, whichever are more; and what ptxas was seen to add. Where copies go through registers, they wait there.
int registers_of(const Problem& problem, const MmaBackwardSchedule& s, const KeysLayout& layout,
                 const Target& target) {
  const int keys = 2 * s.split * s.tile_n / s.warps;
  const int sums = keys * std::max(problem.head_dim, problem.value_dim()) / (32 * s.split);
  const int scores = keys * s.tile_m / (32 * s.split);
  const bool dq_sum = s.dq != static_cast<int>(DqWay::own_pass);
  const int dq = dq_sum ? layout.dq_row_tiles * layout.dq_columns / 2 : 0;
  int more = 62;
  if (target.capability < 80) {
    const int pieces = s.tile_m * (pitch_of(problem.head_dim) + pitch_of(problem.value_dim())) / 16;
    more += 25 + 4 * ((pieces + 32 * s.warps - 1) / (32 * s.warps));
  }
  return sums + std::max(scores, dq) + more;
}

int register_limit(const MmaBackwardSchedule& s, const Target& target) {
  return std::min(255, target.registers_per_sm / (32 * s.warps) / 8 * 8);
}

Recipe recipe_keys(const Problem& problem, const MmaBackwardSchedule& s, const Target& target) {
  const KeysLayout layout = keys_layout(problem, s);
  const bool dq_sum = s.dq != static_cast<int>(DqWay::own_pass);
  Recipe recipe;
  recipe.kernel = "kernels/backward_mma.cu";
  recipe.constants = {
      {"int", "kHeadDim", number(problem.head_dim), "columns of Q, K, dQ and dK"},
      {"int", "kHeadDimV", number(problem.value_dim()), "columns of V, dO and dV"},
      {"int", "kTileM", number(s.tile_m), "query rows per step"},
      {"int", "kTileN", number(s.tile_n), "keys per CTA"},
      {"int", "kWarps", number(s.warps), "per CTA, half of them for dV, half for dK"},
      {"int", "kThreads", number(32 * s.warps), "per CTA"},
      {"int", "kSplit", number(s.split), "warps with the same keys, in either half"},
      {"int", "kStages", number(s.stages), "steps whose Q and dO are in shared memory"},
      {"int", "kTileBytesK", number(layout.tile_k), "of shared memory"},
      {"int", "kTileBytesV", number(layout.tile_v), ""},
      {"int", "kTileBytesQ", number(layout.tile_q), ""},
      {"int", "kTileBytesDout", number(layout.tile_dout), ""},
      {"int", "kTileBytesP", number(layout.tile_p), "of P^T, and as many of dS^T"},
      {"int", "kStageBytes", number(layout.stage), "a tile of Q and of dO, and LSE and delta of its rows"},
  };
  if (dq_sum) {
    const int warps_d = s.warps / layout.dq_warps_m;
    const bool idle = (warps_d - 1) * layout.dq_columns >= problem.head_dim;
    recipe.constants.push_back(
        {"int", "kDqWarpsM", number(layout.dq_warps_m), "warps that share out the rows of dQ"});
    recipe.constants.push_back({"int", "kDqRowTiles", number(layout.dq_row_tiles), "of 16 rows, each"});
    recipe.constants.push_back({"int", "kDqColumns", number(layout.dq_columns), "of dQ, each"});
    recipe.constants.push_back(
        {"bool", "kDqIdle", idle ? "true" : "false", "some warps are left without columns"});
  }
  recipe.sections = sections_of(problem, target);
  recipe.sections["dq_sum"] = dq_sum;
  recipe.sections["ds_tile"] = has_ds_tile(s);
  recipe.sections["split"] = s.split == 2;
  recipe.geometry.grid = Grid::key_tiles;
  recipe.geometry.tile_m = s.tile_m;
  recipe.geometry.tile_n = s.tile_n;
  recipe.geometry.threads = 32 * s.warps;
  recipe.geometry.shared_bytes = layout.total;
  return recipe;
}

Recipe recipe_queries(const Problem& problem, const Target& target) {
  const QueriesLayout layout = queries_layout(problem, target);
  Recipe recipe;
  recipe.kernel = "kernels/backward_mma_dq.cu";
  recipe.suffix = "_dq";
  recipe.constants = {
      {"int", "kHeadDim", number(problem.head_dim), "columns of Q, K and dQ"},
      {"int", "kHeadDimV", number(problem.value_dim()), "columns of V and dO"},
      {"int", "kTileM", number(layout.tile_m()), "query rows per CTA"},
      {"int", "kTileN", number(layout.tile_n), "keys per step"},
      {"int", "kThreads", number(32 * layout.warps), "per CTA"},
      {"int", "kRowTiles", number(layout.row_tiles), "mma tiles of 16 rows of a warp"},
      {"int", "kStages", number(layout.stages), "slots of K and V in shared memory"},
      {"int", "kTileBytesQ", number(layout.tile_m() * pitch_of(problem.head_dim)), "of shared memory"},
      {"int", "kTileBytesDout", number(layout.tile_m() * pitch_of(problem.value_dim())), ""},
      {"int", "kTileBytesK", number(layout.tile_n * pitch_of(problem.head_dim)), ""},
      {"int", "kSlotBytes", number(layout.slot), "a tile of K and a tile of V"},
  };
  recipe.sections = sections_of(problem, target);
  recipe.geometry.tile_m = layout.tile_m();
  recipe.geometry.threads = 32 * layout.warps;
  recipe.geometry.shared_bytes = layout.total;
  return recipe;
}

Recipe recipe_sum(const Problem& problem, const Target& target) {
  constexpr int kThreads = 256;
  Recipe recipe;
  recipe.kernel = "kernels/backward_mma_sum.cu";
  recipe.suffix = "_sum";
  recipe.constants = {
      {"int", "kElementBytes", number(size_of(problem.dtype)), "of dQ"},
      {"int", "kHeadDim", number(problem.head_dim), "columns of dQ"},
      {"int", "kRows", number(kBackwardRowPadding), "per CTA"},
      {"int", "kThreads", number(kThreads), "per CTA"},
  };
  recipe.sections = sections_of(problem, target);
  recipe.sections["fp32"] = false;
  recipe.geometry = {.tile_m = kBackwardRowPadding, .threads = kThreads};
  return recipe;
}

}  // namespace

Legality legal_mma_backward(const Problem& problem, const MmaBackwardSchedule& schedule,
                            const Target& target) {
  const MmaBackwardSchedule& s = schedule;
  if (s.dq == static_cast<int>(DqWay::ordered))
    return {"family mma adds to dQ in no fixed order; dq 0 is deterministic, in a pass of its own"};
  if (s.warps % 2 != 0) return {fmt::format("warps is {}, backward mma needs pairs of them", s.warps)};
  if (kBackwardRowPadding % s.tile_m != 0 || s.tile_m % 16 != 0)
    return {fmt::format("tile_m is {}, backward mma needs 16, 32, 64 or 128", s.tile_m)};
  if (s.tile_n % (8 * s.warps) != 0) {
    return {fmt::format("tile_n {} does not split into multiples of 16 keys for {} pairs of warps", s.tile_n,
                        s.warps / 2)};
  }
  if (s.split == 2) {
    const auto halves = [](int dim) { return dim % 32 == 0 && (dim & (dim - 1)) == 0; };
    if (!halves(problem.head_dim) || !halves(problem.value_dim()) || s.tile_m < 32 || s.warps % 4 != 0 ||
        s.warps > 12) {
      return {fmt::format(
          "split 2 needs head dims of 32, 64, 128 or 256 ({} and {}), tile_m from 32 on ({}) and 4, 8 "
          "or 12 warps ({})",
          problem.head_dim, problem.value_dim(), s.tile_m, s.warps)};
    }
  }
  if (s.tile_m > 64 * s.warps) return {fmt::format("tile_m {} needs more than {} warps", s.tile_m, s.warps)};
  if (target.capability < 80 && s.stages != 1)
    return {fmt::format("{} has no cp.async: copies go through registers, with stages 1 only", target.arch)};
  const KeysLayout layout = keys_layout(problem, s);
  if (layout.total > target.shared_per_cta) {
    return {fmt::format("tile {}x{} with {} stages needs {} of shared memory, {} gives {}", s.tile_m,
                        s.tile_n, s.stages, kilobytes(layout.total), target.arch,
                        kilobytes(target.shared_per_cta))};
  }
  const int registers = registers_of(problem, s, layout, target), limit = register_limit(s, target);
  if (registers > limit) {
    return {fmt::format(
        "tile {}x{} with {} warps needs about {} registers a thread, {} are there; it would spill", s.tile_m,
        s.tile_n, s.warps, registers, limit)};
  }
  return {};
}

std::vector<Recipe> recipes_mma_backward(const Problem& problem, const MmaBackwardSchedule& schedule,
                                         const Target& target) {
  std::vector<Recipe> recipes;
  recipes.push_back(recipe_preprocess(problem, schedule));
  recipes.push_back(recipe_keys(problem, schedule, target));
  recipes.push_back(schedule.dq == static_cast<int>(DqWay::own_pass) ? recipe_queries(problem, target)
                                                                     : recipe_sum(problem, target));
  return recipes;
}

}  // namespace flashjit
