#include "generator/families/wgmma_backward_fp32.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>

#include "generator/families/mma_backward_fp32.hpp"
#include "generator/families/mma_tile.hpp"
#include "generator/families/wgmma_backward_layout.hpp"
#include "generator/families/wgmma_panels.hpp"
#include "generator/families/wgmma_split_products.hpp"

namespace flashjit {

using namespace wgmma;
using namespace wgmma_fp32;
using wgmma_backward::adds_dq;

namespace {

constexpr int kTile = 64;  // query rows of a step, and keys of a CTA
constexpr int kThreads = 3 * 128;
// 24 + 2 * 240 is what 384 threads are launched with.
constexpr int kProducerRegisters = 24;
constexpr int kConsumerRegisters = 240;

int tile_bytes(int columns) {
  return kSplitParts * kTile * panels_of(columns) * kRowBytes;
}

// As templates/parts/wgmma_fp32_backward/layout.cuh lays out, which asserts it.
int shared_bytes(const Problem& problem, const WgmmaBackwardSchedule& s) {
  constexpr int kBarrier = 8;
  const int rows = tile_bytes(problem.head_dim) + tile_bytes(problem.value_dim());
  const int handed_over = adds_dq(s) ? tile_bytes(kTile) : kTile * kTile * 4;
  return rows + handed_over + s.stages * (rows + 2 * kTile * 4 + 4 * kBarrier);
}

// Columns of a gradient in one product. Where the last product has 56, ptxas spills 350 bytes.
int product_columns_of(const Problem& problem) {
  constexpr int kSpilling = 120;
  return problem.head_dim == kSpilling || problem.value_dim() == kSpilling ? 32 : 64;
}

void list(Recipe& recipe, const std::string& name, const SplitProduct& product,
          std::span<const Term> terms = kOneSum) {
  recipe.lists[name] = split_statement(product, 1, terms);
  recipe.lists[name + "_sums"] =
      wgmma_accumulators("sum", {.columns = product.columns, .accumulate = product.adds});
}

void list_products(Recipe& recipe, const Problem& problem, int product_columns) {
  const std::span<const Term> terms = kOneSum;
  SplitProduct scores{.columns = kTile, .steps = 1, .a_register_parts = 1, .a_rows = kTile, .b_rows = kTile};
  list(recipe, "high", scores, terms.last(1));
  scores.adds = true;
  list(recipe, "low", scores, terms.first(terms.size() - 1));

  SplitProduct gradient{.columns = product_columns,
                        .steps = kTile / 16,
                        .a_register_parts = kSplitParts,
                        .b_rows = kTile,
                        .b_transposed = true};
  recipe.lists["a_registers"] = split_fragments("a", gradient.steps, kSplitParts);
  list(recipe, "gradient", gradient);
  gradient.columns = problem.head_dim % product_columns;
  list(recipe, "gradient_qk", gradient);
  gradient.columns = problem.value_dim() % product_columns;
  list(recipe, "gradient_v", gradient);
}

Recipe recipe_keys(const Problem& problem, const WgmmaBackwardSchedule& s) {
  const int dim = problem.head_dim, dim_v = problem.value_dim();
  const int product_columns = product_columns_of(problem), widest = std::max(dim, dim_v);
  Recipe recipe;
  recipe.kernel = "kernels/backward_wgmma_fp32.cu";
  // The third level orders instructions better, and finds registers enough for narrow heads only.
  recipe.ptxas = widest <= kPanelColumns ? 3 : 1;
  recipe.geometry = {.grid = Grid::key_tiles,
                     .tile_m = kTile,
                     .tile_n = kTile,
                     .threads = kThreads,
                     .shared_bytes = shared_bytes(problem, s)};
  recipe.constants = {
      number("kHeadDim", dim, "columns of Q, K, dQ and dK"),
      number("kHeadDimV", dim_v, "columns of V, dO and dV"),
      number("kTileM", kTile, "query rows per step"),
      number("kTileN", kTile, "keys per CTA"),
      number("kProductColumns", product_columns, "of a gradient, in one product"),
      number("kStages", s.stages, "tiles of Q, and of dO, in shared memory"),
      number("kProducer", kThreads / 128 - 1, "the warpgroup that loads"),
      number("kRowPartsBytes", row_parts_bytes_wgmma_backward_fp32(problem),
             "of a tile of rows in the workspace"),
      number("kThreads", kThreads, "per CTA"),
      number("kProducerRegisters", kProducerRegisters, "per thread, after setmaxnreg"),
      number("kConsumerRegisters", kConsumerRegisters, "per thread of the others"),
      number("kSharedBytes", recipe.geometry.shared_bytes, "of dynamic shared memory"),
  };
  recipe.sections = {
      {"bf16", true},  // the parts
      {"fp16", false},
      {"cvt_pairs", true},
      {"causal", problem.causal},
      {"lse", false},
      {"red_vectors", true},
      {"dq_sum", adds_dq(s)},
      {"whole_products", widest >= product_columns},
      {"whole_qk", dim >= product_columns},
      {"last_qk", dim % product_columns != 0},
      {"last_v", dim_v % product_columns != 0 && dim_v % product_columns != dim % product_columns},
  };
  list_products(recipe, problem, product_columns);
  return recipe;
}

}  // namespace

Legality legal_wgmma_backward_fp32(const Problem& problem, const WgmmaBackwardSchedule& s,
                                   const Target& target) {
  const WgmmaBackwardSchedule kernel{.tile_m = kTile, .tile_n = kTile, .stages = s.stages, .dq = s.dq};
  if (s != kernel) {
    return {
        "fp32 has a kernel of its own, where stages and dq may vary; tile_m and tile_n are 64, turns is 0"};
  }
  if (static_cast<DqWay>(s.dq) == DqWay::ordered)
    return {"fp32 has no fixed order of additions to dQ (dq2); use dq1, or dq0, which is deterministic"};
  const int shared = shared_bytes(problem, s);
  if (shared > target.shared_per_cta)
    return too_much_shared(staged_tile(kTile, kTile, s.stages) + " in three parts", shared, target);
  return {};
}

int row_parts_bytes_wgmma_backward_fp32(const Problem& problem) {
  return tile_bytes(problem.head_dim) + tile_bytes(problem.value_dim()) + 2 * kTile * 4;
}

std::vector<Recipe> recipes_wgmma_backward_fp32(const Problem& problem, const WgmmaBackwardSchedule& s,
                                                const Target& target) {
  std::vector<Recipe> recipes = around_keys_fp32(problem, recipe_keys(problem, s), adds_dq(s), target);
  Recipe& delta = recipes.front();
  delta.sections["row_parts"] = true;
  if (!adds_dq(s)) delta.constants.push_back(number("kHeadDim", problem.head_dim, "columns of Q"));
  delta.constants.push_back(number("kRowPartsBytes", row_parts_bytes_wgmma_backward_fp32(problem),
                                   "of a tile of rows in the workspace"));
  return recipes;
}

}  // namespace flashjit
