// Family simt, backward: which schedules are legal, and what its templates are filled with.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "generator/recipe.hpp"
#include "templates/params/backward_rows.h"

namespace flashjit {
namespace {

constexpr int kLanes = 8;  // of a warp across the keys of a tile of scores; the others go down its rows

// How many threads share a row of a tile of gradients, each thread having `own` rows and `columns` columns.
struct Sharing {
  int sharers = 0;  // 0: there is no way
  int own = 0;
  int columns = 0;
  [[nodiscard]] int registers() const { return own * columns; }
};

// The way that needs the fewest shared loads per multiply-add.
Sharing sharing_of(int tile, int dim, int threads) {
  Sharing best;
  double cheapest = std::numeric_limits<double>::infinity();
  for (const int sharers : {4, 8, 16, 32}) {
    const int own = tile * sharers / threads;
    if (dim % sharers != 0 || tile * sharers % threads != 0 || (own != 1 && own != 2 && own != 4 && own != 8))
      continue;
    const int columns = dim / sharers;
    const int loads = (own + 3) / 4 + columns / 4 + columns / 2 % 2 + columns % 2;
    const double cost = static_cast<double>(loads) / (own * columns);
    if (cost < cheapest) cheapest = cost, best = {sharers, own, columns};
  }
  return best;
}

// What follows from problem and schedule: shares, and the places in shared memory, in floats.
struct Layout {
  int threads, rows, keys;
  Sharing of_q, of_k, of_v;
  int stride_qk, stride_v, stride_p;
  int k_at, v_at, q_at, dout_at, p_at, ds_at, floats_keys, floats_queries;
};

Layout layout_of(const Problem& problem, const SimtBackwardSchedule& s) {
  Layout layout{};
  layout.threads = 32 * s.warps;
  layout.rows = s.tile_m * kLanes / layout.threads;
  layout.keys = s.tile_n / kLanes;
  layout.of_q = sharing_of(s.tile_m, problem.head_dim, layout.threads);
  layout.of_k = sharing_of(s.tile_n, problem.head_dim, layout.threads);
  layout.of_v = sharing_of(s.tile_n, problem.value_dim(), layout.threads);
  // 16 bytes of padding put neighbouring rows into different banks, head dims being multiples of 8. The four
  // rows that a warp stores at once of P are 8 banks apart.
  layout.stride_qk = problem.head_dim + 4;
  layout.stride_v = problem.value_dim() + 4;
  layout.stride_p = s.tile_n + 8;
  layout.v_at = layout.k_at + s.tile_n * layout.stride_qk;
  layout.q_at = layout.v_at + s.tile_n * layout.stride_v;
  layout.dout_at = layout.q_at + s.tile_m * layout.stride_qk;
  layout.ds_at = layout.dout_at + s.tile_m * layout.stride_v;
  layout.p_at = layout.ds_at + s.tile_m * layout.stride_p;
  layout.floats_queries = layout.p_at;  // which has no use for P
  layout.floats_keys = layout.p_at + s.tile_m * layout.stride_p;
  return layout;
}

bool careful(const SimtBackwardSchedule& s) {
  return s.tile_m <= 16;
}

// Registers that a thread needs at the worst place of either kernel, found by compiling.
int registers_needed(const SimtBackwardSchedule& s, const Layout& layout) {
  const int scores = layout.rows * layout.keys;
  const int products = 2 * scores + 9 * layout.rows + 8 + (careful(s) ? scores : 0);
  const auto adding = [](const Sharing& sharing, int steps) {
    return sharing.registers() + steps * sharing.own + sharing.columns;
  };
  int keys = std::max({products, adding(layout.of_k, 2), adding(layout.of_v, 2)});
  // Addresses of dQ's sums are worked out early.
  if (s.dq == static_cast<int>(DqWay::atomic)) keys = std::max({keys, adding(layout.of_q, 4), products + 20});
  const int queries = std::max(products, adding(layout.of_q, 4));
  return 32 + std::max(layout.of_k.registers() + layout.of_v.registers() + keys,
                       layout.of_q.registers() + queries + 2 * layout.rows);
}

// What the count lets pass and takes a few registers more than there are, on Hopper and Blackwell; refused on
// all archs, of which none needs it.
bool known_to_spill(const Problem& problem, const SimtBackwardSchedule& s) {
  return problem.head_dim == 96 && problem.value_dim() == 96 &&
         s == SimtBackwardSchedule{.tile_m = 64, .tile_n = 128, .warps = 8, .dq = 1};
}

}  // namespace

Legality legal_simt_backward(const Problem& problem, const SimtBackwardSchedule& s, const Target& target) {
  const Layout layout = layout_of(problem, s);
  const int rows_per_step = layout.threads / kLanes;
  if (s.tile_m % rows_per_step != 0 || kBackwardRowPadding % s.tile_m != 0) {
    return {fmt::format("{} warps cover {} rows at a time: tile_m is {}, may be a multiple that divides {}",
                        s.warps, rows_per_step, s.tile_m, kBackwardRowPadding)};
  }
  if (s.tile_n % kLanes != 0) return {fmt::format("tile_n is {}, may be a multiple of {}", s.tile_n, kLanes)};
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
  const int needed = registers_needed(s, layout);
  const int granted = registers_for(layout.threads, target);
  if (needed > granted) {
    return {
        fmt::format("tile {}x{} with {} warps and head dims {} and {} needs about {} registers a thread, "
                    "there are {}",
                    s.tile_m, s.tile_n, s.warps, problem.head_dim, problem.value_dim(), needed, granted)};
  }
  if (known_to_spill(problem, s)) {
    return {fmt::format("tile {}x{} spills a few bytes at head_dim {}, as compiling it showed", s.tile_m,
                        s.tile_n, problem.head_dim)};
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
      number("kLanes", kLanes, "of a warp side by side across the keys; the others go down the rows"),
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
  const std::map<std::string, bool> sections = {
      {"causal", problem.causal}, {"lse", false}, {"cp_async", target.capability >= 80}, {"dq", atomic}};

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
