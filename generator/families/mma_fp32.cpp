#include "generator/families/mma_fp32.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "generator/families/mma_tile.hpp"

namespace flashjit {
namespace {

// Shared memory of one CTA, in bytes from its start: the parts of a tile of K, of V, and of Q.
struct SharedLayout {
  int part_k = 0, part_v = 0, part_q = 0;  // one part
  [[nodiscard]] int offset_v() const { return kSplitParts * part_k; }
  [[nodiscard]] int offset_q() const { return offset_v() + kSplitParts * part_v; }
  [[nodiscard]] int total() const { return offset_q() + kSplitParts * part_q; }
};

SharedLayout layout_of(const Problem& problem, const MmaSchedule& schedule) {
  return {.part_k = schedule.tile_n * pitch_of(problem.head_dim),
          .part_v = schedule.tile_n * pitch_of(problem.value_dim()),
          .part_q = schedule.tile_m * pitch_of(problem.head_dim)};
}

// Registers in which a thread's pieces of a tile wait, each of 8 numbers
// (templates/parts/mma/loader_split.cuh).
int waiting(int pitch, const MmaSchedule& schedule) {
  const int chunks = pitch / 16, lanes = 32 * schedule.warps / schedule.tile_n;
  return 8 * ((chunks + lanes - 1) / lanes);
}

// Whether there is a mask beside an O that has half of the registers: before Blackwell this fits only at
// ptxas's third level, or at neither.
bool is_wide_under_mask(const Problem& problem, const Target& target) {
  return problem.causal && problem.value_dim() > 224 && target.capability < 100;
}

// Registers of one thread, estimated: O, both sums of a tile's scores, one tile on its way, and those that
// ptxas was seen to add, which depend on the limit (docs/performance/mma-fp32.md, "Registers").
int registers_of(const Problem& problem, const MmaSchedule& s, const Target& target, int limit) {
  const int output = pitch_of(problem.value_dim()) / 4;
  const int copies =
      std::max(waiting(pitch_of(problem.head_dim), s), waiting(pitch_of(problem.value_dim()), s));
  int more = limit == 255 ? 81 : limit >= 168 ? 59 : 69;
  if (copies > 40) more += 8;  // for their addresses
  if (is_wide_under_mask(problem, target) && output == 120) more += 20;
  return output + s.tile_n + 5 * copies / 4 + more;
}

}  // namespace

Legality legal_mma_fp32(const Problem& problem, const MmaSchedule& s, const Target& target) {
  if (s.tile_n % 16 != 0) return {fmt::format("tile_n is {}, mma needs a multiple of 16", s.tile_n)};
  if (s.tile_m != 16 * s.warps) {
    return {fmt::format("tile_m is {}, fp32 needs 16 rows for each warp, {} of {}", s.tile_m, 16 * s.warps,
                        s.warps)};
  }
  if (32 * s.warps % s.tile_n != 0) {
    return {fmt::format("tile_n is {}, fp32 needs {} warps' threads to divide into rows of that many",
                        s.tile_n, s.warps)};
  }
  const MmaSchedule kernel{.tile_m = s.tile_m,
                           .tile_n = s.tile_n,
                           .warps = s.warps,
                           .stages = 1,
                           .kv_apart = 1,
                           .lazy = s.lazy,
                           .min_ctas = s.min_ctas};
  if (s != kernel) {
    return {
        "fp32 is split on its way through registers, with stages 1 and kv_apart 1; q_in_regs, optimistic "
        "and persistent 0, blocks and unroll 1"};
  }
  const int shared = layout_of(problem, s).total();
  const std::string tile = fmt::format("tile {}x{} in three parts", s.tile_m, s.tile_n);
  if (shared > target.shared_per_cta) return too_much_shared(tile, shared, target);
  if (s.min_ctas == 1) return {"min_ctas 1 makes no difference to this tile; leave it at 0"};
  if (Legality ctas = legal_ctas(s, target); !ctas) return ctas;
  if (Legality room = room_for_ctas(tile, shared, s.min_ctas, target); !room) return room;
  const int limit = register_limit(s, target), registers = registers_of(problem, s, target, limit);
  if (registers > limit) {
    return {
        fmt::format("tile {}x{} with {} warps needs about {} registers a thread, {} are left; it would "
                    "spill",
                    s.tile_m, s.tile_n, s.warps, registers, limit)};
  }
  return {};
}

Geometry geometry_mma_fp32(const Problem& problem, const MmaSchedule& s, const Target& target) {
  return {.tile_m = s.tile_m,
          .threads = 32 * s.warps,
          .shared_bytes = layout_of(problem, s).total(),
          .section_bytes = section_bytes(problem, target)};
}

std::vector<Recipe> recipes_mma_fp32(const Problem& problem, const MmaSchedule& s, const Target& target) {
  const SharedLayout layout = layout_of(problem, s);
  Recipe recipe;
  recipe.kernel = "kernels/forward_mma_fp32.cu";
  recipe.constants = {
      number("kHeadDim", problem.head_dim, "columns of Q and K"),
      number("kHeadDimV", problem.value_dim(), "columns of V and O"),
      number("kTileM", s.tile_m, "query rows per CTA"),
      number("kTileN", s.tile_n, "keys per step"),
      number("kThreads", 32 * s.warps, "per CTA"),
      number("kOffsetV", layout.offset_v(), "bytes from the start of shared memory to V"),
      number("kOffsetQ", layout.offset_q(), "bytes from the start of shared memory to Q"),
      {"float", "kLazy", fmt::format("{}.0f", s.lazy), "log2 of the growth that a shift tolerates"},
  };
  if (s.min_ctas > 0) {
    recipe.constants.push_back(
        number("kMinCtas", s.min_ctas, "CTAs per multiprocessor that registers must allow"));
  }
  recipe.sections = {
      {"bf16", true},  // the parts
      {"fp16", false},      {"split", true},
      {"apart", false},     {"together", true},
      {"swapped", false},   {"causal", problem.causal},
      {"lse", problem.lse}, {"min_ctas", s.min_ctas > 0},
      {"mma_k16", true},    {"cvt_pairs", true},
  };
  // The first level is as fast as the third, and takes fewer registers, whose number can be predicted
  // (docs/performance/mma-fp32.md).
  recipe.ptxas = is_wide_under_mask(problem, target) ? 3 : 1;
  recipe.geometry = geometry_mma_fp32(problem, s, target);
  return {recipe};
}

}  // namespace flashjit
