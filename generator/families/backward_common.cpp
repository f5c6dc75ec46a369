// The kernels around a backward pass: the one before it, and those after it that turn sums into dQ.
#include <algorithm>
#include <bit>

#include "generator/recipe.hpp"
#include "templates/params/backward_rows.h"

namespace flashjit {
namespace {

constexpr int kThreads = 256;

std::map<std::string, bool> dtype_sections(const Problem& problem) {
  return {{"fp32", problem.dtype == DType::fp32},
          {"bf16", problem.dtype == DType::bf16},
          {"fp16", problem.dtype == DType::fp16}};
}

}  // namespace

Recipe recipe_preprocess(const Problem& problem, const Schedule& schedule) {
  const int chunks = problem.value_dim() * size_of(problem.dtype) / 16;
  // In fp32 a lane has two chunks, and all lanes together have a row.
  const int parts = problem.dtype == DType::fp32 ? chunks / 2 : chunks;
  const int lanes = std::min(32, static_cast<int>(std::bit_ceil(static_cast<unsigned>(parts))));
  const int threads = std::min(kThreads, kBackwardRowPadding * lanes);
  Recipe recipe;
  recipe.kernel = "kernels/backward_preprocess.cu";
  recipe.suffix = "_preprocess";
  recipe.constants = {
      number("kElementBytes", size_of(problem.dtype), "of dO and O"),
      number("kChunks", chunks, "of 16 bytes in a row of dO and O"),
      number("kLanes", lanes, "side by side on a row"),
      number("kRows", kBackwardRowPadding, "per CTA"),
      number("kThreads", threads, "per CTA"),
  };
  const Workspace workspace = workspace_of(problem, schedule);
  if (workspace.dq_sum) recipe.constants.push_back(number("kHeadDim", problem.head_dim, "columns of dQ"));
  if (workspace.counters)
    recipe.constants.push_back(number("kCounterRows", kBackwardCounterRows, "rows to a counter"));
  if (workspace.splits > 1) {
    recipe.constants.push_back(
        number("kTileKeys", workspace.tile_n, "keys to a tile, whose queries are shared out"));
    recipe.constants.push_back(
        number("kKeyColumns", problem.head_dim + problem.value_dim(), "columns of dV and dK"));
  }
  recipe.sections = dtype_sections(problem);
  recipe.sections["splits"] = workspace.splits > 1;
  // With counters, the first share is stored and others are added to it, so there is nothing to clear.
  recipe.sections["clear"] = workspace.dq_sum && !workspace.counters;
  recipe.sections["counters"] = workspace.counters;
  // With counters, no kernel comes after that would write the rows that nothing is added to.
  recipe.sections["empty_rows"] = workspace.counters;
  recipe.sections["causal"] = problem.causal;
  recipe.geometry = {.tile_m = kBackwardRowPadding, .pads = true, .threads = threads};
  return recipe;
}

Recipe recipe_postprocess(const Problem& problem) {
  Recipe recipe;
  recipe.kernel = "kernels/backward_postprocess.cu";
  recipe.suffix = "_postprocess";
  recipe.constants = {
      number("kHeadDim", problem.head_dim, "columns of dQ"),
      number("kRows", kBackwardRowPadding, "per CTA"),
      number("kThreads", kThreads, "per CTA"),
  };
  recipe.geometry = {.tile_m = kBackwardRowPadding, .threads = kThreads};
  return recipe;
}

Recipe recipe_mma_sum(const Problem& problem, const Target& target) {
  Recipe recipe;
  recipe.kernel = "kernels/backward_mma_sum.cu";
  recipe.suffix = "_sum";
  recipe.constants = {
      number("kElementBytes", size_of(problem.dtype), "of dQ"),
      number("kHeadDim", problem.head_dim, "columns of dQ"),
      number("kRows", kBackwardRowPadding, "per CTA"),
      number("kThreads", kThreads, "per CTA"),
  };
  recipe.sections = dtype_sections(problem);
  recipe.sections["cvt_pairs"] = target.capability >= 80;
  recipe.sections["red_vectors"] = target.capability >= 90;
  recipe.geometry = {.tile_m = kBackwardRowPadding, .threads = kThreads};
  return recipe;
}

}  // namespace flashjit
