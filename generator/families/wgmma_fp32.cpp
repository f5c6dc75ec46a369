#include "generator/families/wgmma_fp32.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "generator/families/mma_tile.hpp"
#include "generator/families/wgmma_fp32_products.hpp"
#include "generator/families/wgmma_registers.hpp"

namespace flashjit {

using namespace wgmma_forward;
using namespace wgmma_fp32;

namespace {

// Where one warpgroup computes, splitting takes as long as the products, and K and V have a producer each.
int producers_of(const WgmmaSchedule& s) {
  return warpgroups_of(s) == 1 ? 2 : 1;
}

int threads_of(const WgmmaSchedule& s) {
  return 128 * (warpgroups_of(s) + producers_of(s));
}

// 64K registers over all threads, in steps of eight a thread. Producers have a few pieces of a tile under
// way.
RegisterSplit split_of(const WgmmaSchedule& s) {
  switch (warpgroups_of(s)) {
    case 1:
      return {120, 256};
    case 2:
      return {88, 208};
    default:
      return {80, 144};
  }
}

// Registers of a consumer's thread: O and Q, with either the sums of scores, or the parts of P and what is on
// its way of P V: two products' sums where a warpgroup computes alone, else one's.
int fragments_of(const Problem& problem, const WgmmaSchedule& s, int sums_of_scores) {
  const int q = 4 * q_register_parts(s) * steps_of(problem.head_dim);
  const int products = warpgroups_of(s) == 1 ? 2 : 1;
  const int values = std::min(problem.value_dim(), products * columns_at_once(problem, s)) / 2;
  return problem.value_dim() / 2 + q + std::max(sums_of_scores, kSplitParts * s.tile_n / 4 + values);
}

// The most sums that one asm statement may have: it is compiled for the registers that the launch gives each
// thread, before setmaxnreg moves any, and ptxas asks for some beside them (its error C7602).
int sums_at_most(const WgmmaSchedule& s) {
  constexpr int kRegisters = 65536, kBeside = 30;
  return std::min(255, kRegisters / threads_of(s)) - kBeside;
}

constexpr int kOtherRegisters = 16;  // which ptxas was seen to add

// How many columns a tile may have before most kernels spill, as compiling 4,000 of them showed
// (docs/performance/wgmma-fp32.md, "Registers"): ptxas keeps registers for asynchronous products apart. A few
// others spill, too; plans and tuning pass over them. V's columns count, and Q's where it is in registers.
int most_columns(const Problem& problem, const WgmmaSchedule& s) {
  const bool third = s.ptxas == 3, shared_out = s.splits > 1;
  switch (warpgroups_of(s)) {
    case 1:
      if (s.tile_n > 48) return third ? 152 : 192;
      if (s.tile_n > 32) return third && problem.causal && s.cluster > 1 ? 168 : 192;
      if (third) return s.cluster > 1 && problem.value_dim() == 256 ? 256 : 208;
      return s.tile_n < 32 ? 224 : 256;
    case 2:
      if (s.q_in_regs == 1) return shared_out ? 64 : third && s.tile_n > 32 ? 80 : 96;
      if (s.q_in_regs == 0 && shared_out && third && problem.causal && s.tile_n > 32) return 104;
      if (s.tile_n <= 32) return problem.causal || s.cluster == 1 ? 176 : 192;
      return s.tile_n > 64 && third ? 96 : 128;
    default:
      if (s.tile_n > 48) return shared_out && third ? 56 : 64;
      return s.q_in_regs == 0 ? 96 : 80;
  }
}

int tile_bytes(int rows, int columns) {
  return kSplitParts * rows * panels_of(columns) * kRowBytes;
}

// As templates/parts/wgmma_fp32/layout.cuh lays out, which asserts it.
int shared_bytes(const Problem& share, const WgmmaSchedule& s) {
  constexpr int kBarrier = 8;
  const int q = s.q_in_regs == 1 ? 0 : tile_bytes(s.tile_m, share.head_dim);
  const int block = tile_bytes(s.tile_n, share.head_dim) + tile_bytes(s.tile_n, share.value_dim());
  const int sums = s.splits == 1 ? 0 : s.tile_m * s.tile_n * 4 + warpgroups_of(s) * 2 * kBarrier;
  return q + s.stages * (block + 4 * kBarrier) + sums;
}

Legality legal_columns(const Problem& problem, const WgmmaSchedule& s) {
  if (s.splits == 1) return {};
  if (s.splits > 2) return {fmt::format("splits is {}, fp32 may have 1 or 2", s.splits)};
  const std::pair<const char*, int> columns[] = {{"head_dim", problem.head_dim},
                                                 {"head_dim_v", problem.value_dim()}};
  for (const auto& [name, count] : columns) {
    if (count % 16 != 0)
      return {fmt::format("splits 2 halves the columns: {} must be a multiple of 16, it is {}", name, count)};
  }
  return {};
}

}  // namespace

bool wgmma_fp32::pairs_parts(const Problem& problem, const WgmmaSchedule& s) {
  const int sums = kSplitParts * s.tile_n / 2;
  return s.q_in_regs != 1 && sums <= sums_at_most(s) &&
         fragments_of(problem, s, sums) + kOtherRegisters <= split_of(s).consumer;
}

Legality legal_wgmma_fp32(const Problem& problem, const WgmmaSchedule& s, const Target& target) {
  if (s.tile_m > 192) return {fmt::format("tile_m is {}, fp32 may have 64, 128 or 192", s.tile_m)};
  const WgmmaSchedule kernel{.tile_m = s.tile_m,
                             .tile_n = s.tile_n,
                             .stages = s.stages,
                             .q_in_regs = s.q_in_regs,
                             .lazy = s.lazy,
                             .optimistic = 0,
                             .ping_pong = 0,
                             .overlap = 0,
                             .persistent = 0,
                             .cluster = s.cluster,
                             .splits = s.splits,
                             .ptxas = s.ptxas};
  if (s != kernel) {
    return {
        "fp32 has a kernel of its own, where tile_m, tile_n, stages, q_in_regs, lazy, cluster, splits and "
        "ptxas may vary; optimistic, ping_pong, overlap and persistent are 0, the others what they are by "
        "default"};
  }
  if (Legality split = legal_columns(problem, s); !split) return split;
  const Problem share = share_of(problem, s);
  if (const int most = sums_at_most(s); s.tile_n / 2 > most) {
    return {fmt::format("tile_n {} has {} accumulators a thread, {} may have {}", s.tile_n, s.tile_n / 2,
                        consumers(s), most)};
  }
  const int needed = fragments_of(share, s, s.tile_n / 2) + kOtherRegisters;
  const int granted = split_of(s).consumer;
  if (needed > granted) {
    return {fmt::format("tile {}x{} needs about {} registers a thread, {} leave{} {}", s.tile_m, s.tile_n,
                        needed, consumers(s), warpgroups_of(s) == 1 ? "s" : "", granted)};
  }
  const int columns =
      s.q_in_regs == 0 || s.tile_n <= 32 ? share.value_dim() : std::max(share.head_dim, share.value_dim());
  if (const int most = most_columns(share, s); columns > most) {
    return {fmt::format("{} takes up to {} columns, this head has {}: beyond, most kernels spill registers",
                        to_string(Schedule{s}), most * s.splits, columns * s.splits)};
  }
  const int shared = shared_bytes(share, s);
  if (shared > target.shared_per_cta)
    return too_much_shared(staged_tile(s.tile_m, s.tile_n, s.stages) + " in three parts", shared, target);
  return {};
}

Geometry geometry_wgmma_fp32(const Problem& problem, const WgmmaSchedule& s) {
  return {.tile_m = s.tile_m * s.cluster,
          .threads = threads_of(s),
          .shared_bytes = shared_bytes(share_of(problem, s), s),
          .cluster = s.cluster * s.splits,  // one of them is 1
          .section_bytes = problem.causal ? s.section << 20 : 0};
}

std::vector<Recipe> recipes_wgmma_fp32(const Problem& problem, const WgmmaSchedule& s) {
  const Problem share = share_of(problem, s);
  const RegisterSplit split = split_of(s);
  const int q_parts = q_register_parts(s), dim_v = share.value_dim(), columns = columns_at_once(share, s);
  const bool by_keys = s.cluster > 1, by_columns = s.splits > 1;
  Recipe recipe;
  recipe.kernel = "kernels/forward_wgmma_fp32.cu";
  recipe.geometry = geometry_wgmma_fp32(problem, s);
  recipe.constants = {
      number("kHeadDim", share.head_dim, by_columns ? "columns of Q and K, a half" : "columns of Q and K"),
      number("kHeadDimV", dim_v, by_columns ? "columns of V and O, a half" : "columns of V and O"),
      number("kTileM", recipe.geometry.tile_m,
             recipe.geometry.cluster > 1 ? "query rows per cluster" : "query rows per CTA"),
      number("kTileN", s.tile_n, "keys per block"),
      number("kProducers", producers_of(s), "warpgroups that load and split"),
      number("kWarpgroups", warpgroups_of(s), "that compute, 64 rows each"),
      number("kThreads", recipe.geometry.threads, "per CTA"),
      number("kColumnsAtOnce", columns, "of V, in one product"),
      number("kStages", s.stages, "blocks of K, and of V, in shared memory"),
      number("kScoreSums", score_sums(share, s), "registers that a thread has for its scores' sums"),
      number("kProducerRegisters", split.producer, "per thread, after setmaxnreg"),
      number("kConsumerRegisters", split.consumer, "per thread, after setmaxnreg"),
      number("kSharedBytes", recipe.geometry.shared_bytes, "of dynamic shared memory"),
      {"float", "kLazy", fmt::format("{}.0f", s.lazy), "log2 of the growth that a shift tolerates"},
  };
  if (by_keys) recipe.constants.push_back(number("kCluster", s.cluster, "CTAs that split for each other"));
  if (by_columns) recipe.constants.push_back(number("kCluster", s.splits, "CTAs that share out the columns"));
  if (q_parts > 0) recipe.constants.push_back(number("kQRegisterParts", q_parts, "of Q, in registers"));
  recipe.sections = {
      {"bf16", true},  // the parts
      {"fp16", false},
      {"split", true},
      {"cvt_pairs", true},
      {"causal", problem.causal},
      {"cluster", by_keys || by_columns},
      {"by_keys", by_keys},
      {"by_columns", by_columns},
      {"padded", by_keys && (share.head_dim % kPanelColumns != 0 || dim_v % kPanelColumns != 0)},
      {"lse", problem.lse},
      {"whole_v", dim_v >= columns},
      {"last_v", dim_v % columns != 0},
      {"q_in_regs", q_parts > 0},
      {"q_in_shared", q_parts < kSplitParts},
      {"paired", pairs_parts(share, s)},
      {"two_producers", producers_of(s) == 2},
      {"alone", warpgroups_of(s) == 1},
  };
  recipe.ptxas = s.ptxas;
  list_products(recipe, share, s);
  return {recipe};
}

}  // namespace flashjit
