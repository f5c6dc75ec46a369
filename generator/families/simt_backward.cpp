// Family simt, backward: which schedules are legal, and what its templates are filled with.
#include <fmt/format.h>

#include <algorithm>

#include "generator/families/simt_backward_layout.hpp"
#include "generator/recipe.hpp"
#include "templates/params/backward_rows.h"

namespace flashjit {

using namespace simt_backward;

namespace {

// Registers that a thread needs at the worst place of either kernel, found by compiling.
int registers_needed(const SimtBackwardSchedule& s, const Layout& layout, const Target& target) {
  const int scores = layout.rows * layout.keys;
  const int products = 2 * scores + 9 * layout.rows + 8 + (careful(s) ? scores : 0);
  const auto adding = [](const Sharing& sharing, int steps) {
    return sharing.registers() + steps * sharing.own + sharing.columns;
  };
  int keys = std::max({products, adding(layout.of_k, 2), adding(layout.of_v, 2)});
  // Addresses of dQ's sums are worked out early.
  if (s.dq == static_cast<int>(DqWay::atomic)) keys = std::max({keys, adding(layout.of_q, 4), products + 20});
  const int queries = std::max(products, adding(layout.of_q, 4));
  // ptxas takes more where a thread has many scores, and for the same code on sm_80 to sm_89.
  const int others = scores >= 32 || (target.capability >= 80 && target.capability < 90) ? 56 : 32;
  return others + std::max(layout.of_k.registers() + layout.of_v.registers() + keys,
                           layout.of_q.registers() + queries + 2 * layout.rows);
}

// The rounding error of S becomes an error of P, and so of all gradients. It averages out over many rows and
// dims; where either are few, S is kept as the sum of two floats.
bool keeps_scores_twofold(const Problem& problem, const SimtBackwardSchedule& s) {
  return careful(s) || problem.head_dim <= 16;
}

}  // namespace

Legality legal_simt_backward(const Problem& problem, const SimtBackwardSchedule& s, const Target& target) {
  const Layout layout = layout_of(problem, s);
  const int rows_per_step = layout.threads / layout.lanes;
  if (s.tile_m % rows_per_step != 0 || kBackwardRowPadding % s.tile_m != 0) {
    return {fmt::format("{} warps cover {} rows at a time: tile_m is {}, may be a multiple that divides {}",
                        s.warps, rows_per_step, s.tile_m, kBackwardRowPadding)};
  }
  if (s.tile_n % 8 != 0) return {fmt::format("tile_n is {}, may be a multiple of 8", s.tile_n)};
  const int widest = std::max(problem.head_dim, problem.value_dim());
  if (layout.threads < widest / 4) {
    return {fmt::format("{} warps copy less than one row of {} floats at a time, use {} or more", s.warps,
                        widest, (widest + 127) / 128)};
  }
  if (layout.of_q.sharers == 0 || layout.of_k.sharers == 0 || layout.of_v.sharers == 0) {
    return {
        fmt::format("{} warps cannot share tiles of {} queries and {} keys with head dims {} and {} evenly",
                    s.warps, s.tile_m, s.tile_n, problem.head_dim, problem.value_dim())};
  }
  const int needed = registers_needed(s, layout, target);
  const int granted = registers_for(layout.threads, target);
  if (needed > granted) {
    return {
        fmt::format("tile {}x{} with {} warps and head dims {} and {} needs about {} registers a thread, "
                    "there are {}",
                    s.tile_m, s.tile_n, s.warps, problem.head_dim, problem.value_dim(), needed, granted)};
  }
  const int bytes = layout.floats_keys * 4;
  if (bytes > target.shared_per_cta) {
    return too_much_shared(fmt::format("tile {}x{} with head dims {} and {}", s.tile_m, s.tile_n,
                                       problem.head_dim, problem.value_dim()),
                           bytes, target);
  }
  return {};
}

std::vector<Recipe> recipes_simt_backward(const Problem& problem, const SimtBackwardSchedule& s,
                                          const Target& target) {
  const Layout layout = layout_of(problem, s);
  const auto way = static_cast<DqWay>(s.dq);
  const bool atomic = way == DqWay::atomic;
  const Constant sums = flag("kCareful", careful(s), "sums of S, dP and delta lose less");
  const std::vector<Constant> common = {
      number("kHeadDim", problem.head_dim, "columns of Q and K"),
      number("kHeadDimV", problem.value_dim(), "columns of V and dO"),
      flag("kCausal", problem.causal, "bottom-right aligned"),
      number("kTileM", s.tile_m, "query rows of a tile"),
      number("kTileN", s.tile_n, "keys of a tile"),
      number("kWarps", s.warps, "per CTA"),
      number("kThreads", layout.threads, "per CTA"),
      number("kUnroll", 1, "steps of S and dP per turn of their loops"),
      flag("kPrefetch", false, "fragments are loaded when they are needed"),
      number("kLanes", layout.lanes, "of a warp side by side across the keys; the others go down the rows"),
      number("kRows", layout.rows, "of S per thread"),
      number("kKeys", layout.keys, "columns of S per thread"),
      sums,
      number("kStrideQk", layout.stride_qk, "floats from row to row of Q and K in shared memory"),
      number("kStrideV", layout.stride_v, "floats from row to row of V and dO"),
      number("kStrideP", layout.stride_p, "floats from row to row of P and dS"),
      number("kSharedK", layout.k_at, "where K begins in shared memory, in floats"),
      number("kSharedV", layout.v_at, "V"),
      number("kSharedQ", layout.q_at, "Q"),
      number("kSharedDout", layout.dout_at, "dO"),
      number("kSharedDs", layout.ds_at, "dS"),
  };
  const Constant sharers_q = number("kSharersQ", layout.of_q.sharers, "threads side by side on a row of dQ");
  const std::map<std::string, bool> sections = {{"causal", problem.causal},
                                                {"lse", false},
                                                {"cp_async", target.capability >= 80},
                                                {"twofold", keeps_scores_twofold(problem, s)},
                                                {"dq", atomic},
                                                {"red_vectors", atomic && target.capability >= 90}};

  Recipe keys;
  keys.kernel = "kernels/backward_simt_keys.cu";
  keys.suffix = "_keys";
  keys.constants = common;
  keys.constants.push_back(number("kSharedP", layout.p_at, "P"));
  keys.constants.push_back(number("kSharersK", layout.of_k.sharers, "threads side by side on a row of dK"));
  keys.constants.push_back(number("kSharersV", layout.of_v.sharers, "threads side by side on a row of dV"));
  if (atomic) keys.constants.push_back(sharers_q);
  keys.sections = sections;
  keys.geometry = {.grid = Grid::key_tiles,
                   .tile_m = s.tile_m,
                   .tile_n = s.tile_n,
                   .threads = layout.threads,
                   .shared_bytes = layout.floats_keys * 4};
  Recipe preprocess = recipe_preprocess(problem, s);
  preprocess.constants.push_back(sums);
  if (atomic) return {preprocess, keys, recipe_postprocess(problem)};

  Recipe queries;
  queries.kernel = "kernels/backward_simt_queries.cu";
  queries.suffix = "_queries";
  queries.constants = common;
  queries.constants.push_back(sharers_q);
  queries.sections = sections;
  queries.geometry = {
      .tile_m = s.tile_m, .threads = layout.threads, .shared_bytes = layout.floats_queries * 4};
  return {preprocess, keys, queries};
}

}  // namespace flashjit
