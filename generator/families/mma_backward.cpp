// Family mma, backward: which schedules are legal, and what its templates are filled with.
#include <fmt/format.h>

#include "generator/families/mma_backward_fp32.hpp"
#include "generator/families/mma_backward_layout.hpp"
#include "generator/recipe.hpp"
#include "templates/params/backward_rows.h"

namespace flashjit {

using namespace mma_backward;

namespace {

std::map<std::string, bool> switches_of(const Problem& problem, const Target& target) {
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
      {"stmatrix", false},
      {"red_vectors", target.capability >= 90},
      {"min_ctas", false},
  };
}

// Left the choice, ptxas spills a few registers in one kernel of hundreds to fit one CTA more.
void ask_for_one_cta(Recipe& recipe) {
  recipe.constants.push_back(number("kMinCtas", 1, "CTAs per multiprocessor that registers must allow"));
  recipe.sections["min_ctas"] = true;
}

Recipe recipe_keys(const Problem& problem, const MmaBackwardSchedule& s, const Target& target) {
  const KeysLayout layout = keys_layout(problem, s);
  const bool dq_sum = adds_dq(s);
  Recipe recipe;
  recipe.kernel = "kernels/backward_mma.cu";
  recipe.constants = {
      number("kHeadDim", problem.head_dim, "columns of Q, K, dQ and dK"),
      number("kHeadDimV", problem.value_dim(), "columns of V, dO and dV"),
      number("kTileM", s.tile_m, "query rows per step"),
      number("kTileN", s.tile_n, "keys per CTA"),
      number("kWarps", s.warps, "per CTA, half of them for dV, half for dK"),
      number("kThreads", 32 * s.warps, "per CTA"),
      number("kSharers", s.sharers, "warps with the same keys, in either half"),
      number("kStages", s.stages, "steps whose Q and dO are in shared memory"),
      number("kTileBytesK", layout.tile_k, "of shared memory"),
      number("kTileBytesV", layout.tile_v, "likewise"),
      number("kTileBytesQ", layout.tile_q, "likewise"),
      number("kTileBytesDout", layout.tile_dout, "likewise"),
      number("kStageBytes", layout.stage, "a tile of Q and of dO, and LSE and delta of its rows"),
  };
  if (has_ds_tile(s))
    recipe.constants.push_back(number("kTileBytesP", layout.tile_p, "of P^T, and as many of dS^T"));
  if (dq_sum) {
    const int warps_d = s.warps / layout.dq_warps_m;
    const bool idle = (warps_d - 1) * layout.dq_columns >= problem.head_dim;
    recipe.constants.push_back(number("kDqWarpsM", layout.dq_warps_m, "warps that share out the rows of dQ"));
    recipe.constants.push_back(number("kDqRowTiles", layout.dq_row_tiles, "of 16 rows, each"));
    recipe.constants.push_back(number("kDqColumns", layout.dq_columns, "of dQ, each"));
    recipe.constants.push_back(flag("kDqIdle", idle, "some warps are left without columns"));
  }
  recipe.sections = switches_of(problem, target);
  if (registers_of(problem, s, target) <= kRoomy) ask_for_one_cta(recipe);
  recipe.sections["copies_in_turn"] = copies_in_turn(problem, s, target);
  recipe.sections["dq_sum"] = dq_sum;
  recipe.sections["two_stages"] = s.stages == 2;
  recipe.sections["dq_before"] = dq_sum && s.stages == 2;
  recipe.sections["ds_tile"] = has_ds_tile(s);
  recipe.sections["stmatrix"] = has_ds_tile(s) && target.capability >= 90;
  recipe.sections["shared_keys"] = s.sharers == 2;
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
      number("kHeadDim", problem.head_dim, "columns of Q, K and dQ"),
      number("kHeadDimV", problem.value_dim(), "columns of V and dO"),
      number("kTileM", layout.tile_m(), "query rows per CTA"),
      number("kTileN", layout.tile_n, "keys per step"),
      number("kThreads", 32 * layout.warps, "per CTA"),
      number("kRowTiles", layout.row_tiles, "mma tiles of 16 rows of a warp"),
      number("kStages", layout.stages, "slots of K and V in shared memory"),
      number("kTileBytesQ", layout.tile_m() * pitch_of(problem.head_dim), "of shared memory"),
      number("kTileBytesDout", layout.tile_m() * pitch_of(problem.value_dim()), "likewise"),
      number("kTileBytesK", layout.tile_n * pitch_of(problem.head_dim), "likewise"),
      number("kSlotBytes", layout.slot, "a tile of K and a tile of V"),
  };
  recipe.sections = switches_of(problem, target);
  recipe.sections["copies_in_turn"] = layout.copies_in_turn;
  if (problem.value_dim() > problem.head_dim) ask_for_one_cta(recipe);
  recipe.geometry.tile_m = layout.tile_m();
  recipe.geometry.threads = 32 * layout.warps;
  recipe.geometry.shared_bytes = layout.total;
  return recipe;
}

}  // namespace

Legality legal_mma_backward(const Problem& problem, const MmaBackwardSchedule& schedule,
                            const Target& target) {
  const MmaBackwardSchedule& s = schedule;
  if (problem.dtype == DType::fp32) return legal_mma_backward_fp32(problem, s, target);
  if (s.warps % 2 != 0) return {fmt::format("warps is {}, backward mma needs pairs of them", s.warps)};
  if (kBackwardRowPadding % s.tile_m != 0 || s.tile_m % 16 != 0)
    return {fmt::format("tile_m is {}, backward mma needs 16, 32, 64 or 128", s.tile_m)};
  if (s.tile_n % (8 * s.warps) != 0) {
    return {fmt::format("tile_n {} does not split into multiples of 16 keys for {} pairs of warps", s.tile_n,
                        s.warps / 2)};
  }
  if (s.sharers == 2) {
    const auto halves = [](int dim) { return dim % 32 == 0 && (dim & (dim - 1)) == 0; };
    if (!halves(problem.head_dim) || !halves(problem.value_dim()) || s.tile_m < 32 || s.warps % 4 != 0 ||
        s.warps > 12) {
      return {fmt::format(
          "sharers 2 needs head dims of 32, 64, 128 or 256 ({} and {}), tile_m from 32 on ({}) and 4, 8 "
          "or 12 warps ({})",
          problem.head_dim, problem.value_dim(), s.tile_m, s.warps)};
    }
  }
  if (target.capability < 80 && s.stages != 1)
    return {fmt::format("{} has no cp.async: copies go through registers, with stages 1 only", target.arch)};
  const KeysLayout layout = keys_layout(problem, s);
  if (layout.total > target.shared_per_cta)
    return too_much_shared(staged_tile(s.tile_m, s.tile_n, s.stages), layout.total, target);
  const int registers = registers_of(problem, s, target), limit = register_limit(s, target);
  if (registers > limit && !fits_all_the_same(problem, s, target)) {
    return {fmt::format(
        "tile {}x{} with {} warps needs about {} registers a thread, {} are there; it would spill", s.tile_m,
        s.tile_n, s.warps, registers, limit)};
  }
  if (spills_all_the_same(problem, s, target)) {
    return {
        fmt::format("tile {}x{} spills a few bytes at head_dim {} under a mask on {}, as compiling it showed",
                    s.tile_m, s.tile_n, problem.head_dim, target.arch)};
  }
  return {};
}

std::vector<Recipe> recipes_mma_backward(const Problem& problem, const MmaBackwardSchedule& schedule,
                                         const Target& target) {
  if (problem.dtype == DType::fp32) return recipes_mma_backward_fp32(problem, schedule, target);
  std::vector<Recipe> recipes;
  recipes.push_back(recipe_preprocess(problem, schedule));
  recipes.push_back(recipe_keys(problem, schedule, target));
  recipes.push_back(adds_dq(schedule) ? recipe_mma_sum(problem, target) : recipe_queries(problem, target));
  return recipes;
}

}  // namespace flashjit
