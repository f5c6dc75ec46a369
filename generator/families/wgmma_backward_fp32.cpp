#include "generator/families/wgmma_backward_fp32.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

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

// Bytes of shared memory, or of the workspace.
constexpr int kBarrier = 8;
constexpr int kWeights = kTile * kTile * 4;
constexpr int kLseAndDelta = 2 * kTile * 4;

int tile_bytes(int columns) {
  return kSplitParts * kTile * panels_of(columns) * kRowBytes;
}
// Of a tile of Q and one of dO, or of K and of V.
int tiles_bytes(const Problem& problem) {
  return tile_bytes(problem.head_dim) + tile_bytes(problem.value_dim());
}

// Of one CTA's shared memory, as layout.cuh and queries_layout.cuh of templates/parts/wgmma_fp32_backward lay
// it out, which assert it.
int shared_bytes(const Problem& problem, const WgmmaBackwardSchedule& s) {
  const int tiles = tiles_bytes(problem);
  const int handed_over = adds_dq(s) ? tile_bytes(kTile) : kWeights;
  return tiles + handed_over + s.stages * (tiles + kLseAndDelta + 4 * kBarrier);
}
int shared_bytes_of_queries(const Problem& problem, const WgmmaBackwardSchedule& s) {
  const int tiles = tiles_bytes(problem);
  return tiles + kWeights + 2 * kBarrier + s.stages * (tiles + 4 * kBarrier);
}

void list(Recipe& recipe, const std::string& name, const SplitProduct& product,
          std::span<const Term> terms = kOneSum) {
  recipe.lists[name] = split_statement(product, 1, terms);
  recipe.lists[name + "_sums"] =
      wgmma_accumulators("sum", {.columns = product.columns, .accumulate = product.adds});
}

// scores: the terms of S and dP, of which the last is the product of both first parts.
void list_products(Recipe& recipe, const Problem& problem, std::span<const Term> scores) {
  SplitProduct score{.columns = kTile, .steps = 1, .a_register_parts = 1, .a_rows = kTile, .b_rows = kTile};
  list(recipe, "high", score, scores.last(1));
  score.adds = true;
  list(recipe, "low", score, scores.first(scores.size() - 1));

  SplitProduct gradient{.columns = kPanelColumns,
                        .steps = kTile / 16,
                        .a_register_parts = kSplitParts,
                        .b_rows = kTile,
                        .b_transposed = true};
  recipe.lists["a_registers"] = split_fragments("a", gradient.steps, kSplitParts);
  list(recipe, "gradient", gradient);
  gradient.columns = problem.head_dim % kPanelColumns;
  list(recipe, "gradient_qk", gradient);
  gradient.columns = problem.value_dim() % kPanelColumns;
  list(recipe, "gradient_v", gradient);
}

// What both kernels that multiply have: one that owns keys, and one that owns query rows.
Recipe recipe_of_products(const Problem& problem, const WgmmaBackwardSchedule& s, int shared_bytes) {
  const int dim = problem.head_dim, dim_v = problem.value_dim(), widest = std::max(dim, dim_v);
  Recipe recipe;
  // The third level orders instructions better, and finds registers enough for narrow heads only.
  recipe.ptxas = widest <= kPanelColumns ? 3 : 1;
  recipe.geometry = {.tile_m = kTile, .tile_n = kTile, .threads = kThreads, .shared_bytes = shared_bytes};
  recipe.constants = {
      number("kHeadDim", dim, "columns of Q, K, dQ and dK"),
      number("kHeadDimV", dim_v, "columns of V, dO and dV"),
      number("kTileM", kTile, "query rows per tile"),
      number("kTileN", kTile, "keys per tile"),
      number("kProducer", kThreads / 128 - 1, "the warpgroup that loads"),
      number("kRowPartsBytes", row_parts_bytes_wgmma_backward_fp32(problem),
             "of a tile of rows in the workspace"),
      number("kThreads", kThreads, "per CTA"),
      number("kProducerRegisters", kProducerRegisters, "per thread, after setmaxnreg"),
      number("kConsumerRegisters", kConsumerRegisters, "per thread of the others"),
      number("kSharedBytes", shared_bytes, "of dynamic shared memory"),
  };
  if (!adds_dq(s)) {
    recipe.constants.push_back(number("kKeyPartsBytes", key_parts_bytes_wgmma_backward_fp32(problem),
                                      "of a tile of keys in the workspace"));
  }
  recipe.sections = {
      {"bf16", true},  // the parts
      {"fp16", false},
      {"cvt_pairs", true},
      {"causal", problem.causal},
      {"lse", false},
      {"whole_products", widest >= kPanelColumns},
      {"whole_qk", dim >= kPanelColumns},
      {"last_qk", dim % kPanelColumns != 0},
      {"last_v", dim_v % kPanelColumns != 0 && dim_v % kPanelColumns != dim % kPanelColumns},
  };
  return recipe;
}

Recipe recipe_keys(const Problem& problem, const WgmmaBackwardSchedule& s) {
  Recipe recipe = recipe_of_products(problem, s, shared_bytes(problem, s));
  recipe.kernel = "kernels/backward_wgmma_fp32.cu";
  recipe.geometry.grid = Grid::key_tiles;
  recipe.constants.push_back(number("kStages", s.stages, "tiles of Q, and of dO, in shared memory"));
  recipe.sections["red_vectors"] = true;
  recipe.sections["dq_sum"] = adds_dq(s);
  list_products(recipe, problem, kOneSum);
  return recipe;
}

// The terms in the order in which the same numbers are added up where A and B have changed places, as in the
// kernels before, so that both find the same P and dP.
constexpr std::array<Term, 6> swapped(std::array<Term, 6> terms) {
  for (Term& term : terms) std::swap(term.a, term.b);
  return terms;
}

Recipe recipe_queries(const Problem& problem, const WgmmaBackwardSchedule& s) {
  Recipe recipe = recipe_of_products(problem, s, shared_bytes_of_queries(problem, s));
  recipe.kernel = "kernels/backward_wgmma_fp32_dq.cu";
  recipe.suffix = "_dq";
  recipe.constants.push_back(number("kStages", s.stages, "tiles of K, and of V, in shared memory"));
  recipe.sections["whole_products"] = recipe.sections["whole_qk"];
  recipe.sections["last_v"] = false;  // dV is not computed
  static constexpr std::array<Term, 6> kSwapped = swapped(kOneSum);
  list_products(recipe, problem, kSwapped);
  return recipe;
}

Recipe recipe_delta(const Problem& problem, const WgmmaBackwardSchedule& s, const Target& target) {
  Recipe recipe = recipe_delta_fp32(problem, adds_dq(s), target);
  recipe.sections["row_parts"] = true;
  if (!adds_dq(s)) recipe.constants.push_back(number("kHeadDim", problem.head_dim, "columns of Q"));
  recipe.constants.push_back(number("kRowPartsBytes", row_parts_bytes_wgmma_backward_fp32(problem),
                                    "of a tile of rows in the workspace"));
  return recipe;
}

}  // namespace

Legality legal_wgmma_backward_fp32(const Problem& problem, const WgmmaBackwardSchedule& s,
                                   const Target& target) {
  const WgmmaBackwardSchedule kernel{.tile_m = kTile, .tile_n = kTile, .stages = s.stages, .dq = s.dq};
  if (s != kernel) {
    return {
        "fp32 has kernels of its own, where stages and dq may vary; tile_m and tile_n are 64, turns is 0, "
        "splits is 1, staged is 0"};
  }
  if (static_cast<DqWay>(s.dq) == DqWay::ordered)
    return {fmt::format("fp32 has no fixed order of additions to dQ (dq2); use {}",
                        problem.deterministic ? "dq0" : "dq1 or dq0")};
  const int shared = adds_dq(s) ? shared_bytes(problem, s)
                                : std::max(shared_bytes(problem, s), shared_bytes_of_queries(problem, s));
  if (shared > target.shared_per_cta)
    return too_much_shared(staged_tile(kTile, kTile, s.stages) + " in three parts", shared, target);
  return {};
}

int row_parts_bytes_wgmma_backward_fp32(const Problem& problem) {
  return tiles_bytes(problem) + kLseAndDelta;
}

int key_parts_bytes_wgmma_backward_fp32(const Problem& problem) {
  return tiles_bytes(problem);
}

std::vector<Recipe> recipes_wgmma_backward_fp32(const Problem& problem, const WgmmaBackwardSchedule& s,
                                                const Target& target) {
  return {recipe_delta(problem, s, target), recipe_keys(problem, s),
          adds_dq(s) ? recipe_mma_sum(problem, target) : recipe_queries(problem, s)};
}

}  // namespace flashjit
