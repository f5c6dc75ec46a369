// Family mma: which schedules are legal, and what its templates are filled with.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "generator/families/mma_fp32.hpp"
#include "generator/families/mma_generations.hpp"
#include "generator/families/mma_tile.hpp"
#include "generator/recipe.hpp"

namespace flashjit {
namespace {

// Shared memory of one CTA, in bytes from its start. The kernel's constants and its geometry both come from
// here.
struct SharedLayout {
  int tile_k = 0;    // one tile of K
  int slot = 0;      // a tile of K and a tile of V
  int offset_q = 0;  // of Q's tile
  int total = 0;
};

SharedLayout layout_of(const Problem& problem, const MmaSchedule& schedule) {
  SharedLayout layout;
  layout.tile_k = schedule.tile_n * pitch_of(problem.head_dim);
  const int tile_v = schedule.tile_n * pitch_of(problem.value_dim());
  layout.slot = layout.tile_k + tile_v;
  const int slots = schedule.stages * layout.slot;
  const int q = schedule.tile_m * pitch_of(problem.head_dim);
  const int o = schedule.tile_m * pitch_of(problem.value_dim());  // takes the place of everything at the end
  if (schedule.persistent == 1) {
    // O leaves through V's place, while the next tile's Q and K arrive in theirs.
    layout.offset_q = layout.tile_k + std::max(tile_v, o);
    layout.total = layout.offset_q + q;
    return layout;
  }
  // A Q that moves on to registers lies where the loop's first copies go: V's last tile, or the whole last
  // slot.
  layout.offset_q = slots;
  if (schedule.q_in_regs == 1) layout.offset_q -= schedule.kv_apart == 1 ? tile_v : layout.slot;
  layout.total = std::max({slots, layout.offset_q + q, o});
  return layout;
}

// How many copies of 16 bytes one thread makes of a tile.
int passes_of(int pitch, const MmaSchedule& schedule) {
  const int threads = 32 * schedule.warps;
  return (schedule.tile_n * (pitch / 16) + threads - 1) / threads;
}

// Registers of one thread, estimated: those that the loop holds.
int held_registers(const Problem& problem, const MmaSchedule& schedule) {
  const int row_tiles = schedule.tile_m / schedule.warps / 16;
  const int output = row_tiles * problem.value_dim() / 2;
  const int scores = row_tiles * schedule.tile_n / schedule.blocks / 2 * std::min(schedule.blocks, 2);
  const int q = row_tiles * 4 * (schedule.q_in_regs == 1 ? (problem.head_dim + 15) / 16 : 1);
  return output + scores + q + 60 + 4 * row_tiles + std::max(0, scores - 64) / 2;
}

// Whether ptxas is told that one CTA per multiprocessor will do. Left the choice, ptxas spills a few
// registers in one kernel of eighty to fit one CTA more. Where the loop holds more registers than this, one
// more CTA cannot fit, and the hint itself may cost a spill.
bool is_told_of_one_cta(const Problem& problem, const MmaSchedule& schedule) {
  return held_registers(problem, schedule) <= 224;
}

// All registers of one thread, estimated: those that the loop holds, and those that ptxas was seen to add.
// tests/compile checks this against ptxas: no schedule of the search space that passes spills, on any arch.
int registers_of(const Problem& problem, const MmaSchedule& schedule, const Target& target) {
  int more = 0;
  if (schedule.unroll > 1) more += 44;                     // two steps are scheduled as one
  if (register_limit(schedule, target) < 255) more += 12;  // ptxas spills a few rather than reorder
  if (schedule.optimistic == 1) more += 8;
  // The next tile's Q is copied in the loop's last turn.
  if (schedule.persistent == 1 && target.capability >= 90 && target.capability < 120) more += 28;
  // Copies start in two places, and there are two loops where the diagonal is peeled.
  if (schedule.kv_apart == 1) more += (schedule.stages == 1 ? 8 : 20) + (problem.causal ? 20 : 0);
  const int scores = schedule.tile_m / schedule.warps / 16 * schedule.tile_n / 2;
  const int passes_k = passes_of(pitch_of(problem.head_dim), schedule);
  const int passes_v = passes_of(pitch_of(problem.value_dim()), schedule);
  if (target.capability >= 80) {
    if (schedule.kv_apart == 1) more += problem.causal ? scores / 2 : 8;
    more += 3 * std::max(0, passes_k + passes_v - 32);  // ptxas keeps the addresses of so many copies
  } else {  // copies wait in registers, and ptxas fills what is left between the two
    const int waiting = 4 * std::max(passes_k, passes_v);
    more += 4 + waiting + std::min(48, 3 * std::max(0, scores - 8) + std::max(0, waiting - 16));
  }
  return held_registers(problem, schedule) + more;
}

// Kernels that the estimate puts beyond the limit but that ptxas was seen to fit, on all archs of these
// generations. Some are the fastest known for their problems (docs/performance/mma.md).
struct Tight {
  int head_dim;
  bool causal;
  MmaSchedule schedule;
  std::array<int, 4> generations;
};
const Tight kTight[] = {
    {64, false, {.tile_n = 96, .q_in_regs = 1, .optimistic = 1}, {80, 90, 100, 120}},
    {64, true, {.tile_n = 96, .q_in_regs = 1, .optimistic = 1}, {80, 90, 100, 120}},
    {64, true, {.tile_n = 128}, {90, 100, 120}},
    {128, false, {.stages = 1, .kv_apart = 1}, {80, 90, 100, 120}},
    {128, true, {.stages = 1, .kv_apart = 1}, {80, 90, 100, 120}},
    {128, true, {}, {90, 100, 120}},
    {128, true, {.blocks = 2}, {80, 90, 120}},
    {256, false, {.tile_n = 128, .warps = 8, .stages = 1, .kv_apart = 1}, {90, 100}},
    {256, false, {.tile_n = 128, .warps = 8, .stages = 1, .kv_apart = 1, .persistent = 1}, {90, 100}},
    {128, false, {.stages = 1, .kv_apart = 1, .persistent = 1}, {120}},
    {256, true, {.tile_m = 64, .stages = 1, .kv_apart = 1}, {80, 90, 100}},
    {256, false, {.tile_n = 96, .warps = 8, .stages = 1, .kv_apart = 1}, {80}},
    {256, true, {.tile_m = 64, .tile_n = 48, .stages = 1, .kv_apart = 1}, {80}},
};

bool fits_all_the_same(const Problem& problem, const MmaSchedule& schedule, const Target& target) {
  if (problem.value_dim() != problem.head_dim) return false;
  return std::any_of(std::begin(kTight), std::end(kTight), [&](const Tight& tight) {
    return tight.head_dim == problem.head_dim && tight.causal == problem.causal &&
           tight.schedule == schedule &&
           std::find(tight.generations.begin(), tight.generations.end(), generation_of(target)) !=
               tight.generations.end();
  });
}

}  // namespace

Legality legal_mma(const Problem& problem, const MmaSchedule& schedule, const Target& target) {
  if (problem.dtype == DType::fp32) return legal_mma_fp32(problem, schedule, target);
  const MmaSchedule& s = schedule;
  if (s.tile_n % 16 != 0) return {fmt::format("tile_n is {}, mma needs a multiple of 16", s.tile_n)};
  if (s.tile_m % (16 * s.warps) != 0) {
    return {
        fmt::format("tile_m {} does not split into multiples of 16 rows for {} warps", s.tile_m, s.warps)};
  }
  if (s.tile_n % (16 * s.blocks) != 0) {
    return {
        fmt::format("tile_n {} does not split into {} blocks of a multiple of 16 keys", s.tile_n, s.blocks)};
  }
  if (s.blocks > 1 && s.kv_apart == 1)
    return {"blocks above 1 need kv_apart 0: they read K and V of a tile in turns"};
  if (s.optimistic == 1 && s.blocks > 1)
    return {"optimistic 1 needs blocks 1: a tile is done again as a whole"};
  if (s.optimistic == 1 && s.lazy == 0)
    return {"optimistic 1 needs lazy above 0: it lets exponentials grow before it looks"};
  if (s.optimistic == 1 && 1 << s.lazy < s.tile_n / 2) return optimism_in_vain(s.tile_n, s.lazy);
  if (problem.dtype == DType::fp16 && s.lazy > 15) {
    return {fmt::format(
        "lazy is {}, fp16 needs 15 or less: exponentials grow to 2^lazy, and it ends at 65504", s.lazy)};
  }
  if (target.capability < 80 && (s.stages != 1 || s.kv_apart != 1)) {
    return {fmt::format("{} has no cp.async: copies go through registers, with stages 1 and kv_apart 1 only",
                        target.arch)};
  }
  if (s.stages == 1 && s.kv_apart == 0)
    return {"one stage needs kv_apart 1, so that V is copied beside the first product"};
  if (s.persistent == 1) {
    if (problem.causal) return {"persistent 1 is for full attention: causal tiles differ in length"};
    if (s.stages != 1 || s.q_in_regs == 1 || s.optimistic == 1 || s.unroll != 1)
      return {"persistent 1 needs stages 1, q_in_regs 0, optimistic 0 and unroll 1"};
    if (target.capability < 80) return {fmt::format("persistent 1 needs cp.async, {} has none", target.arch)};
  }
  const int shared = layout_of(problem, s).total;
  if (shared > target.shared_per_cta)
    return too_much_shared(staged_tile(s.tile_m, s.tile_n, s.stages), shared, target);
  if (s.persistent == 1 && 2 * (shared + target.shared_reserved) <= target.shared_per_sm) {
    return {
        fmt::format("persistent 1 is for a CTA that has the multiprocessor to itself, {} of shared memory "
                    "let two share it",
                    kilobytes(shared))};
  }
  if (s.min_ctas == 1 && is_told_of_one_cta(problem, s))
    return {"min_ctas 1 makes no difference to this tile; leave it at 0"};
  if (Legality ctas = legal_ctas(s, target); !ctas) return ctas;
  if (Legality room = room_for_ctas(staged_tile(s.tile_m, s.tile_n, s.stages), shared, s.min_ctas, target);
      !room)
    return room;
  const int registers = registers_of(problem, s, target), limit = register_limit(s, target);
  if (registers > limit && !fits_all_the_same(problem, s, target)) {
    return {fmt::format(
        "tile {}x{} with {} warps needs about {} registers a thread, {} leave{} {}; it would spill", s.tile_m,
        s.tile_n, s.warps, registers,
        s.min_ctas > 1 ? fmt::format("{} CTAs per multiprocessor", s.min_ctas) : "one CTA",
        s.min_ctas > 1 ? "" : "s", limit)};
  }
  return {};
}

Geometry geometry_mma(const Problem& problem, const MmaSchedule& s, const Target& target) {
  if (problem.dtype == DType::fp32) return geometry_mma_fp32(problem, s, target);
  return {.tile_m = s.tile_m,
          .threads = 32 * s.warps,
          .shared_bytes = layout_of(problem, s).total,
          .persistent = s.persistent == 1,
          .section_bytes = section_bytes(problem, target)};
}

std::vector<Recipe> recipes_mma(const Problem& problem, const MmaSchedule& schedule, const Target& target) {
  if (problem.dtype == DType::fp32) return recipes_mma_fp32(problem, schedule, target);
  const MmaSchedule& s = schedule;
  const SharedLayout layout = layout_of(problem, s);
  const int rows_per_warp = s.tile_m / s.warps;
  Recipe recipe;
  recipe.kernel = s.persistent == 1 ? "kernels/forward_mma_persistent.cu" : "kernels/forward_mma.cu";
  recipe.constants = {
      number("kHeadDim", problem.head_dim, "columns of Q and K"),
      number("kHeadDimV", problem.value_dim(), "columns of V and O"),
      number("kTileM", s.tile_m, "query rows per CTA"),
      number("kTileN", s.tile_n, "keys per step"),
      number("kBlockN", s.tile_n / s.blocks, "keys whose scores are held at a time"),
      number("kThreads", 32 * s.warps, "per CTA"),
      number("kRowsPerWarp", rows_per_warp, "query rows of one warp"),
      number("kRowTiles", rows_per_warp / 16, "mma tiles of 16 rows in them"),
      number("kStages", s.stages, "slots of K and V in shared memory"),
      number("kTileBytesK", layout.tile_k, "bytes of a tile of K"),
      number("kSlotBytes", layout.slot, "bytes of a tile of K and a tile of V"),
      number("kOffsetQ", layout.offset_q, "bytes from the start of shared memory to Q"),
      {"float", "kLazy", fmt::format("{}.0f", s.lazy), "log2 of the growth that a shift tolerates"},
      number("kUnroll", s.unroll,
             s.optimistic == 1 ? "steps in one turn of the loop over tiles"
                               : "steps in one turn of the loop over unmasked tiles"),
  };
  if (s.persistent == 1) {  // it has one slot
    std::erase_if(recipe.constants,
                  [](const Constant& c) { return c.name == "kStages" || c.name == "kSlotBytes"; });
  }
  const int min_ctas = std::max(s.min_ctas, is_told_of_one_cta(problem, s) ? 1 : 0);
  if (min_ctas > 0) {
    recipe.constants.push_back(
        number("kMinCtas", min_ctas, "CTAs per multiprocessor that registers must allow"));
  }
  if (s.optimistic == 1) {
    recipe.constants.push_back({"float", "kLargestSum", fmt::format("{}.0f", 1 << s.lazy),
                                "largest sum that tells of no score far above its shift"});
  }
  if (s.blocks > 1) {
    recipe.constants.push_back(
        number("kBlocks", s.blocks, "parts of a step, each multiplied beside the softmax of the one before"));
  }
  const bool ampere = target.capability >= 80;
  recipe.sections = {
      {"bf16", problem.dtype == DType::bf16},
      {"fp16", problem.dtype == DType::fp16},
      {"split", false},
      {"causal", problem.causal},
      {"lse", problem.lse},
      {"kv_apart", s.kv_apart == 1},
      {"one_stage", s.stages == 1},
      {"rings_apart", s.kv_apart == 1 && s.stages > 1},
      {"at_once", s.kv_apart == 0 && s.blocks == 1},
      {"in_blocks", s.blocks > 1},
      {"q_in_regs", s.q_in_regs == 1},
      {"optimistic", s.optimistic == 1},
      {"min_ctas", min_ctas > 0},
      {"async", ampere},
      {"one_place", false},  // with this, ptxas spills some of the fastest kernels
      {"mma_k16", ampere},
      {"cvt_pairs", ampere},
  };
  recipe.geometry = geometry_mma(problem, s, target);
  return {recipe};
}

}  // namespace flashjit
