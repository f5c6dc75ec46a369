#include "generator/families/wgmma_fp32.hpp"

#include <fmt/format.h>

#include <algorithm>

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
      return {128, 248};
    case 2:
      return {88, 208};
    default:
      return {80, 144};
  }
}

// Registers of a consumer's thread: O and Q, with either the sums of scores, or the parts of P and a panel of
// P V.
int fragments_of(const Problem& problem, const WgmmaSchedule& s, int sums_of_scores) {
  const int q = 4 * q_register_parts(s) * steps_of(problem.head_dim);
  const int panel = std::min(problem.value_dim(), kPanelColumns) / 2;
  return problem.value_dim() / 2 + q + std::max(sums_of_scores, kSplitParts * s.tile_n / 4 + panel);
}

// The most sums that one asm statement may have: it is compiled for the registers that the launch gives each
// thread, before setmaxnreg moves any, and ptxas asks for some beside them (its error C7602).
int sums_at_most(const WgmmaSchedule& s) {
  constexpr int kRegisters = 65536, kBeside = 30;
  return std::min(255, kRegisters / threads_of(s)) - kBeside;
}

constexpr int kOtherRegisters = 16;  // which ptxas was seen to add

// Kernels that the count lets pass, and that spill all the same, as compiling 4,500 of them showed
// (docs/performance/wgmma-fp32.md, "Registers"): ptxas keeps registers for asynchronous products apart. At
// its third level it needs a few more.
bool spills_all_the_same(const Problem& problem, const WgmmaSchedule& s) {
  const int dim = problem.head_dim, dim_v = problem.value_dim(), widest = std::max(dim, dim_v);
  const int n = s.tile_n;
  const bool differ = dim != dim_v;
  const bool third = s.ptxas == 3, third_under_mask = third && problem.causal;
  if (third && widest > 128) return true;
  switch (warpgroups_of(s)) {
    case 1:
      return dim_v / 2 + kSplitParts * n / 4 > (differ ? 136 : 140);
    case 2:
      if (differ && s.stages > 1 && (n > 32 || dim_v > 128)) return true;
      if (s.q_in_regs == 1) return widest > (n > 64 || third_under_mask ? 64 : 80);
      if (dim_v > 128) return dim_v > 160 || n > 32 || (s.q_in_regs == 2 && differ);
      if (n > 64 && widest > 96) return s.q_in_regs != 0 || third;
      if (problem.causal && n > 48 && widest > 104) return dim % 16 != 0 || (third && s.q_in_regs == 0);
      return false;
    default:
      return widest > 64;
  }
}

int tile_bytes(int rows, int columns) {
  return kSplitParts * rows * panels_of(columns) * kRowBytes;
}

// As templates/parts/wgmma_fp32/layout.cuh lays out, which asserts it.
int shared_bytes(const Problem& problem, const WgmmaSchedule& s) {
  const int q = s.q_in_regs == 1 ? 0 : tile_bytes(s.tile_m, problem.head_dim);
  const int block = tile_bytes(s.tile_n, problem.head_dim) + tile_bytes(s.tile_n, problem.value_dim());
  constexpr int kBarriers = 4 * 8;
  return q + s.stages * (block + kBarriers);
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
                             .ptxas = s.ptxas};
  if (s != kernel) {
    return {
        "fp32 has a kernel of its own, where tile_m, tile_n, stages, q_in_regs, lazy and ptxas may vary; "
        "optimistic, ping_pong, overlap and persistent are 0, the others what they are by default"};
  }
  if (const int most = sums_at_most(s); s.tile_n / 2 > most) {
    return {fmt::format("tile_n {} has {} accumulators a thread, {} may have {}", s.tile_n, s.tile_n / 2,
                        consumers(s), most)};
  }
  const int needed = fragments_of(problem, s, s.tile_n / 2) + kOtherRegisters;
  const int granted = split_of(s).consumer;
  if (needed > granted) {
    return {fmt::format("tile {}x{} needs about {} registers a thread, {} leave{} {}", s.tile_m, s.tile_n,
                        needed, consumers(s), warpgroups_of(s) == 1 ? "s" : "", granted)};
  }
  if (spills_all_the_same(problem, s)) {
    return {fmt::format(
        "{} spills a few bytes at head_dim {}, values of {}, as compiling it showed; take fewer keys or "
        "rows, or ptxas 1",
        to_string(Schedule{s}), problem.head_dim, problem.value_dim())};
  }
  const int shared = shared_bytes(problem, s);
  if (shared > target.shared_per_cta)
    return too_much_shared(staged_tile(s.tile_m, s.tile_n, s.stages) + " in three parts", shared, target);
  return {};
}

Geometry geometry_wgmma_fp32(const Problem& problem, const WgmmaSchedule& s) {
  return {.tile_m = s.tile_m,
          .threads = threads_of(s),
          .shared_bytes = shared_bytes(problem, s),
          .section_bytes = problem.causal ? s.section << 20 : 0};
}

std::vector<Recipe> recipes_wgmma_fp32(const Problem& problem, const WgmmaSchedule& s) {
  const RegisterSplit split = split_of(s);
  const int q_parts = q_register_parts(s), dim_v = problem.value_dim();
  Recipe recipe;
  recipe.kernel = "kernels/forward_wgmma_fp32.cu";
  recipe.geometry = geometry_wgmma_fp32(problem, s);
  recipe.constants = {
      number("kHeadDim", problem.head_dim, "columns of Q and K"),
      number("kHeadDimV", dim_v, "columns of V and O"),
      number("kTileM", s.tile_m, "query rows per CTA"),
      number("kTileN", s.tile_n, "keys per block"),
      number("kProducers", producers_of(s), "warpgroups that load and split"),
      number("kWarpgroups", warpgroups_of(s), "that compute, 64 rows each"),
      number("kThreads", recipe.geometry.threads, "per CTA"),
      number("kStages", s.stages, "blocks of K, and of V, in shared memory"),
      number("kScoreSums", score_sums(problem, s), "registers that a thread has for its scores' sums"),
      number("kProducerRegisters", split.producer, "per thread, after setmaxnreg"),
      number("kConsumerRegisters", split.consumer, "per thread, after setmaxnreg"),
      number("kSharedBytes", recipe.geometry.shared_bytes, "of dynamic shared memory"),
      {"float", "kLazy", fmt::format("{}.0f", s.lazy), "log2 of the growth that a shift tolerates"},
  };
  if (q_parts > 0) recipe.constants.push_back(number("kQRegisterParts", q_parts, "of Q, in registers"));
  recipe.sections = {
      {"bf16", true},  // the parts
      {"fp16", false},
      {"split", true},
      {"cvt_pairs", true},
      {"causal", problem.causal},
      {"lse", problem.lse},
      {"whole_v", dim_v >= kPanelColumns},
      {"last_v", dim_v % kPanelColumns != 0},
      {"q_in_regs", q_parts > 0},
      {"q_in_shared", q_parts < kSplitParts},
      {"paired", pairs_parts(problem, s)},
      {"two_producers", producers_of(s) == 2},
  };
  recipe.ptxas = s.ptxas;
  list_products(recipe, problem, s);
  return {recipe};
}

}  // namespace flashjit
