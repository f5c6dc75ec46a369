// Family wgmma: what its templates are filled with.
#include <fmt/format.h>

#include "generator/families/wgmma_fp32.hpp"
#include "generator/families/wgmma_layout.hpp"
#include "generator/families/wgmma_loops.hpp"
#include "generator/families/wgmma_products.hpp"
#include "generator/families/wgmma_registers.hpp"
#include "generator/families/wgmma_scores.hpp"
#include "generator/recipe.hpp"

namespace flashjit {

using namespace wgmma_forward;

namespace {

// How long a shift stays: until a thread's exponentials of a block sum up to `largest`. Then the shift moves
// so that this sum is 2^-headroom. bf16 has fp32's exponents: P is as good at 2^-40 as at 1, and so is O, for
// values of V between 2^-90 and 2^100. So shifts begin with that headroom, too. fp16 loses bits below 2^-14,
// which shows where many small keys follow a large one: the fewer keys are left, the more headroom there is
// (sum_after_move in parts/wgmma/softmax.cuh), 12 at most.
struct Room {
  std::string largest;
  int headroom = 0;
};

Room room_of_shift(const Problem& problem, const WgmmaSchedule& schedule) {
  if (problem.dtype == DType::bf16) return {fmt::format("0x1p{}f", schedule.lazy), 40};
  return {"65504.0f", 12};
}

// Maps of K or V: one box copies all whole panels, another one just the columns after them, since TMA takes
// time to fill in zeros (measured, docs/performance/wgmma/row-ends.md).
void add_maps(std::vector<TensorMapSpec>& maps, Operand operand, int columns, int rows, int last_row_bytes) {
  const int whole = columns / kPanelColumns, rest = columns % kPanelColumns;
  if (whole > 0) maps.push_back({.operand = operand, .box_rows = rows, .panels = whole});
  if (rest > 0) {
    maps.push_back(
        {.operand = operand, .box_rows = rows, .panels = 1, .columns = rest, .row_bytes = last_row_bytes});
  }
}

std::vector<Constant> constants(const Problem& problem, const WgmmaSchedule& schedule) {
  const RegisterSplit split = registers_of(schedule);
  std::vector<Constant> list{
      number("kHeadDim", problem.head_dim, "columns of Q and K"),
      number("kHeadDimV", problem.value_dim(), "columns of V and O"),
      number("kTileM", schedule.tile_m, "query rows per tile"),
      number("kTileN", schedule.tile_n, "keys per block"),
      number("kWarpgroups", warpgroups_of(schedule), "that compute, 64 rows each"),
      number("kThreads", 128 * (warpgroups_of(schedule) + 1), "per CTA, the producer's warpgroup included"),
      number("kStages", schedule.stages, "blocks of K, and of V, in flight"),
      number("kProducerRegisters", split.producer, "per thread, after setmaxnreg"),
      number("kConsumerRegisters", split.consumer, "per thread, after setmaxnreg"),
      number("kSharedBytes", shared_bytes(problem, schedule), "of dynamic shared memory"),
  };
  if (schedule.min_ctas > 1) {
    list.push_back(
        number("kMinCtas", schedule.min_ctas, "CTAs per multiprocessor that registers must allow"));
  }
  if (const int steps = q_register_steps(problem, schedule); steps > 0) {
    list.push_back(number("kQRegisterSteps", steps, "of 16 columns of Q that live in registers"));
  }
  if (has_narrow_k(problem) || has_half_step(problem)) {
    list.push_back(
        number("kLastKRowBytes", last_k_row_bytes(problem.head_dim), "of a row of K's last panel"));
  }
  if (schedule.splits == 1) {
    list.push_back(
        number("kOPasses", schedule.o_passes,
               schedule.o_passes > 0 ? "passes in which O leaves" : "O leaves at once, through Q's place"));
  }
  if (!has_one_step(problem, schedule)) {
    list.push_back(number("kUnroll", schedule.unroll, "of the loop over unmasked blocks"));
  }
  if (schedule.cluster > 1) {
    list.push_back(number("kCluster", schedule.cluster, "CTAs that load K and V for each other"));
  }
  if (schedule.splits > 1) {
    list.push_back(number("kCluster", schedule.splits, "CTAs that share out the keys of a tile"));
  }
  if (schedule.lazy > 0) {
    list.push_back(
        {"float", "kLazy", fmt::format("{}.0f", schedule.lazy), "log2 of the growth that a shift tolerates"});
  }
  if (schedule.optimistic == 1) {
    const Room room = room_of_shift(problem, schedule);
    list.push_back({"float", "kLargestSum", room.largest,
                    "of a thread's exponentials in a block, up to which a shift stays"});
    list.push_back({"float", "kLostSum", fmt::format("0x1p{}f", 126 - room.headroom),
                    "of them, above which scores are computed again"});
    if (problem.dtype == DType::bf16) {
      list.push_back({"float", "kHeadroom", fmt::format("{}.0f", room.headroom),
                      "log2 of how far above a row's scores its shift goes"});
      list.push_back({"float", "kSumAfterMove", fmt::format("0x1p{}f", -room.headroom),
                      "what the largest lane's sum becomes when a shift moves"});
    }
  }
  return list;
}

}  // namespace

std::vector<Recipe> recipes_wgmma(const Problem& problem, const WgmmaSchedule& s, const Target&) {
  if (problem.dtype == DType::fp32) return recipes_wgmma_fp32(problem, s);
  const int dim = problem.head_dim;
  const int dim_v = problem.value_dim();
  const bool dynamic = !is_static(s);
  const int q_steps = q_register_steps(problem, s);
  const bool q_in_shared = q_steps < steps_of(dim);
  const bool narrow_k = has_narrow_k(problem);
  const bool split = s.splits > 1;
  const bool even = has_even_shares(s);
  const bool o_apart = s.o_passes > 0 && !split;  // O leaves through shared memory of its own
  const int clusters = s.cluster * s.splits;      // one of them is 1
  const bool q_again = s.persistent > 0;          // a CTA has one tile after another
  const bool release_q = q_again && o_apart;      // Q's place is free again before O has left
  const bool one_step = has_one_step(problem, s);
  // Whether a tile's blocks are taken from the first one up: with values so wide, moves of shifts cost next
  // to nothing (docs/performance/wgmma/device-memory.md).
  const bool upward = problem.causal && one_step && !split && !even;
  const bool first_inside = has_first_inside(problem, s);
  // Per key, 64 rows take dv / 32 clocks of the tensor cores, and 4 of the exponentials' units.
  const bool short_values = s.overlap == 0 || dim_v <= 128;

  Recipe recipe;
  recipe.kernel = "kernels/forward_wgmma.cu";
  recipe.constants = constants(problem, s);
  recipe.sections = {
      {"bf16", problem.dtype == DType::bf16},
      {"fp16", problem.dtype == DType::fp16},
      {"cvt_pairs", true},
      {"causal", problem.causal},
      {"lse", problem.lse},
      {"dynamic", dynamic},
      {"one_each", s.persistent == 0 && !split},
      {"one_after_another", s.persistent != 0 && !even},
      {"dealt", !dynamic && !split && !even},
      {"static_order", !dynamic && !split},
      {"sections", dynamic && problem.causal},
      {"q_own_lines", has_own_lines(problem)},
      {"tma_load", s.cluster == 1 || !has_own_lines(problem)},
      {"q_in_regs", q_steps > 0},
      {"q_in_shared", q_in_shared},
      // More steps than these would spill.
      {"whole_descriptors", q_in_shared && steps_of(dim) <= 8},
      {"o_through_q", s.o_passes == 0},
      {"o_apart", o_apart},
      {"passes", s.o_passes > 1},
      {"q_again", q_again},
      {"release_q", release_q},
      {"release_q_in_first", release_q && !q_in_shared && first_inside},
      {"release_q_after_first", release_q && !q_in_shared && !first_inside},
      {"release_q_after_scores", release_q && q_in_shared},
      {"cluster", s.cluster > 1},
      {"min_ctas", s.min_ctas > 1},
      {"rows_by_head", problem.lse || split || s.optimistic == 1},  // stored, or computed again, one by one
      {"split", split},
      {"even", even},
      {"shares", split || even},
      {"own_keys", clusters == 1 && !even},
      {"pair_keys", s.cluster > 1 && !even},
      {"in_clusters", clusters > 1},
      {"alternate", s.cluster > 1 && problem.causal},
      {"upward", upward},
      {"downward", !upward && !split && !even},
      {"block_by_block", !upward && !split},
      {"full_of_tile", problem.causal && s.cluster == 1 && !upward},
      {"full_of_cluster", problem.causal && s.cluster > 1 && !upward},
      {"whole_k", dim >= kPanelColumns},
      {"last_k", dim % kPanelColumns != 0},
      {"narrow_k", narrow_k},
      {"half_step", has_half_step(problem)},
      {"whole_v", dim_v >= kPanelColumns},
      {"last_v", dim_v % kPanelColumns != 0},
      {"lazy", s.lazy > 0},
      {"optimistic", s.optimistic == 1},
      {"above_peaks", s.optimistic == 1 && problem.dtype == DType::bf16},
      {"ping_pong", s.ping_pong == 1},
      {"overlap", s.overlap == 1},
      {"short_values", short_values},
      {"holds_outgrown", !short_values && s.optimistic == 1},
      {"holds", !short_values && s.optimistic == 0},
      // Some block's exponentials are taken with no values in flight.
      {"whole_block", s.overlap == 0 || !first_inside || s.optimistic == 1},
      {"rescale_early", s.overlap == 1 && s.rescale_early == 1},
      {"first_inside", first_inside},
      {"settles", first_inside && s.rescale_early == 1},
      {"first_apart", s.overlap == 1 && !first_inside},
      {"late_apart", s.overlap == 1 && !first_inside && s.rescale_early == 0},
      {"masked_first", problem.causal && !one_step && first_inside},
      {"masked_loop", problem.causal && !one_step && !first_inside},
      {"one_step", one_step},
  };

  list_products(recipe, problem, s, narrow_k);
  list_score_registers(recipe, problem, s);

  recipe.ptxas = s.ptxas;
  recipe.geometry = geometry_wgmma(problem, s);
  recipe.maps = {{.operand = Operand::q, .box_rows = 64, .panels = 1, .packs = true}};
  add_maps(recipe.maps, Operand::k, dim, s.tile_n, last_k_row_bytes(dim));
  add_maps(recipe.maps, Operand::v, dim_v, s.tile_n, kRowBytes);
  // Where CTAs share out a tile's keys, threads store O's columns, without TMA.
  if (!split) recipe.maps.push_back({.operand = Operand::o, .box_rows = 64, .panels = 1, .packs = true});
  return {recipe};
}

}  // namespace flashjit
