// Family wgmma: which schedules are legal, and what its templates are filled with.
#include <fmt/format.h>

#include <algorithm>

#include "generator/families/wgmma_layout.hpp"
#include "generator/families/wgmma_products.hpp"
#include "generator/families/wgmma_registers.hpp"
#include "generator/families/wgmma_scores.hpp"
#include "generator/recipe.hpp"

namespace flashjit {

using namespace wgmma_forward;

namespace {

// How long a shift stays: until a thread's exponentials of a block sum up to `largest`; then it moves so that
// this sum is 2^-headroom. bf16 has fp32's exponents: P is as good at 2^-40 as at 1, and so is O, for values
// of V between 2^-90 and 2^100; so shifts begin with that headroom, too. fp16 loses bits below 2^-14, which
// shows where many small keys follow a large one: headroom for as few keys as are left (sum_after_move in
// parts/wgmma/softmax.cuh), 12 at most.
struct Room {
  std::string largest;
  int headroom = 0;
};

Room room_of_shift(const Problem& problem, const WgmmaSchedule& schedule) {
  if (problem.dtype == DType::bf16) return {fmt::format("0x1p{}f", schedule.lazy), 40};
  return {"65504.0f", 12};
}

// Whether masked and unmasked blocks are taken by one loop: a step of so many values lasts longer than
// whatever a branch costs it.
bool has_one_step(const Problem& problem, const WgmmaSchedule& schedule) {
  return problem.value_dim() > 192 && (problem.causal || schedule.overlap == 1);
}

// Whether the loop over masked blocks takes a tile's first one too, which has no values of another beside it:
// a sixth less to compile. Q in registers beside wide values leaves it none.
bool has_first_inside(const Problem& problem, const WgmmaSchedule& schedule) {
  const bool short_of_registers = schedule.q_in_regs > 0 && problem.value_dim() > 128;
  return schedule.overlap == 1 &&
         (has_one_step(problem, schedule) || (problem.causal && !short_of_registers));
}

// Maps of K or V: one box copies all whole panels, another one the columns behind them, and nothing else,
// since TMA takes time to fill in zeros (measured, docs/performance/wgmma/row-ends.md).
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
      number("kHeadDim", problem.head_dim, "columns of q and k"),
      number("kHeadDimV", problem.value_dim(), "columns of v and o"),
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
    list.push_back(number("kQRegisterSteps", steps, "of 16 columns of q that live in registers"));
  }
  if (has_narrow_k(problem) || has_half_step(problem)) {
    list.push_back(
        number("kLastKRowBytes", last_k_row_bytes(problem.head_dim), "of a row of K's last panel"));
  }
  if (schedule.splits == 1) {
    list.push_back(
        number("kOPasses", schedule.o_passes, "passes in which O leaves; 0: at once, through Q's place"));
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
        {"float", "kLazy", std::to_string(schedule.lazy), "log2 of the growth that a shift tolerates"});
  }
  if (schedule.optimistic == 1) {
    const Room room = room_of_shift(problem, schedule);
    list.push_back({"float", "kLargestSum", room.largest,
                    "of a thread's exponentials in a block, up to which a shift stays"});
    list.push_back({"float", "kLostSum", fmt::format("0x1p{}f", 126 - room.headroom),
                    "of them, above which scores are computed again"});
    if (problem.dtype == DType::bf16) {
      list.push_back({"float", "kHeadroom", std::to_string(room.headroom),
                      "log2 of how far above a row's scores its shift goes"});
      list.push_back({"float", "kSumAfterMove", fmt::format("0x1p{}f", -room.headroom),
                      "what the largest lane's sum becomes when a shift moves"});
    }
  }
  return list;
}

Legality legal_splits(const Problem& problem, const WgmmaSchedule& s) {
  if (s.splits == 1) return {};
  if (s.persistent != 0) {
    return {fmt::format("splits {} leaves CTAs one tile each, which is persistent 0, not {}", s.splits,
                        s.persistent)};
  }
  if (s.cluster != 1) {
    return {fmt::format("splits {} and cluster {} are two uses of clusters; leave one of them at 1", s.splits,
                        s.cluster)};
  }
  if (s.o_passes != 1) {
    return {fmt::format("o_passes {} makes no difference to splits above 1; leave it at 1", s.o_passes)};
  }
  const int columns = 8 * s.splits;  // of which each CTA adds up eight, and of the next as many
  const int pieces = s.tile_m * 4 * ((problem.value_dim() + columns - 1) / columns * columns);
  if (const int room = ring_bytes(problem, s); pieces > room) {
    return {fmt::format("splits {} adds up O in the place of K and V, which takes {}; they have {}", s.splits,
                        kilobytes(pieces), kilobytes(room))};
  }
  return {};
}

// Whether as many CTAs as registers allow find room for their tiles, too.
Legality legal_min_ctas(const Problem& problem, const WgmmaSchedule& s, const Target& target) {
  if (s.min_ctas == 0) return {};
  if (s.min_ctas == 1) return {"min_ctas 1 is what 0 says, too; leave it at 0"};
  constexpr int kUnit = 128;  // in which shared memory is given to CTAs
  const int room = target.shared_per_sm / s.min_ctas / kUnit * kUnit - target.shared_reserved;
  if (const int shared = shared_bytes(problem, s); shared > room) {
    return {
        fmt::format("tile {}x{} with {} stage{} needs {} of shared memory, {} CTAs per multiprocessor have "
                    "{} each",
                    s.tile_m, s.tile_n, s.stages, s.stages == 1 ? "" : "s", kilobytes(shared), s.min_ctas,
                    kilobytes(room))};
  }
  return {};
}

Legality legal_even_shares(const Problem& problem, const WgmmaSchedule& s) {
  if (!has_even_shares(s)) return {};
  if (s.cluster != 1 && problem.causal) {
    return {fmt::format("persistent 3 under a mask needs cluster 1, cluster is {}", s.cluster)};
  }
  if (s.o_passes == 0)
    return {
        "o_passes 0 puts O in Q's place; persistent 3 adds up shares in a place of O's own, use 1 or more"};
  return {};
}

}  // namespace

Legality legal_wgmma(const Problem& problem, const WgmmaSchedule& s, const Target& target) {
  const int warpgroups = warpgroups_of(s);
  if (s.tile_m % 64 != 0) return {fmt::format("tile_m is {}, wgmma needs a multiple of 64", s.tile_m)};
  if (s.tile_n % 16 != 0) return {fmt::format("tile_n is {}, wgmma needs a multiple of 16", s.tile_n)};
  if (s.max_chains != 2 && s.max_chains != 4 && s.max_chains != 8) {
    return {fmt::format("max_chains is {}, may be 2, 4 or 8", s.max_chains)};
  }
  if (s.ptxas == 2) return {"ptxas is 2, which makes the code of 3; may be 1 or 3"};
  if (s.max_chains > s.tile_n / 4) {
    return {fmt::format("max_chains {} is more than the {} scores that a thread has of a row", s.max_chains,
                        s.tile_n / 4)};
  }
  if (problem.dtype == DType::fp16 && s.lazy > 15) {
    return {fmt::format("lazy {} lets exponentials grow to 2^{}, fp16 ends below 2^16", s.lazy, s.lazy)};
  }
  if (s.optimistic == 1 && s.lazy == 0)
    return {"optimistic 1 lets exponentials grow before it looks, lazy 0 does not"};
  if (s.optimistic == 1 && problem.dtype == DType::bf16 && 1 << s.lazy < s.tile_n / 2) {
    return {
        fmt::format("optimistic 1 sums up {} exponentials before it looks; 2^lazy must be at least twice "
                    "that, lazy is {}",
                    s.tile_n / 4, s.lazy)};
  }
  if (s.ping_pong == 1 && warpgroups == 1)
    return {"ping_pong needs two or more warpgroups, tile_m 64 has one"};
  if (s.ping_pong == 1 && s.overlap == 0) {
    return {"ping_pong orders pairs of products in flight together, overlap 0 has none"};
  }
  if (s.rescale_early == 0 && s.overlap == 0)
    return {"rescale_early 0 makes no difference to overlap 0; leave it at 1"};
  if (s.unroll != 1 && has_one_step(problem, s)) {
    return {
        fmt::format("unroll {} makes no difference to values of {} columns, whose blocks are all taken by "
                    "one loop; leave it at 1",
                    s.unroll, problem.value_dim())};
  }
  // ptxas would wait for the scores in front of it: a tile's first block has no values in flight (C7517).
  if (s.rescale_early == 1 && s.overlap == 1 && has_one_step(problem, s)) {
    return {
        fmt::format("rescale_early 1 is not for values of {} columns, whose blocks are all taken by one "
                    "loop, at the end of which O is rescaled; set it to 0",
                    problem.value_dim())};
  }
  if (const int usual = WgmmaSchedule{}.section; s.section != usual && (is_static(s) || !problem.causal)) {
    return {fmt::format("section {} orders the causal tiles of persistent 2 only; leave it at {}", s.section,
                        usual)};
  }
  if (s.q_in_regs == 2 && panels_of(problem.head_dim) < 2) {
    return {
        fmt::format("q_in_regs 2 splits Q's panels of 64 columns, head_dim {} has one", problem.head_dim)};
  }
  if (Legality split = legal_splits(problem, s); !split) return split;
  if (Legality even = legal_even_shares(problem, s); !even) return even;
  const int panels_v = panels_of(problem.value_dim());
  if (s.o_passes > 0 && panels_v % s.o_passes != 0) {
    return {fmt::format("o_passes {} does not divide the {} panels of 64 columns that head_dim_v {} has",
                        s.o_passes, panels_v, problem.value_dim())};
  }
  if (s.o_passes == 0 && panels_v > panels_of(problem.head_dim)) {
    return {fmt::format("o_passes 0 puts O in Q's place, but head_dim_v {} is wider than head_dim {}",
                        problem.value_dim(), problem.head_dim)};
  }
  const FragmentRegisters needed = fragments_of(problem, s);
  if (const int most = accumulators_at_most(s); std::max(needed.s, needed.o) > most) {
    return {fmt::format("tile {}x{} has a product of {} accumulators a thread, {} may have {}", s.tile_m,
                        s.tile_n, std::max(needed.s, needed.o), consumers(s), most)};
  }
  const int granted = registers_of(s).consumer;
  if (needed.total() > granted && !known_to_fit(problem, s)) {
    return {
        fmt::format("tile {}x{} needs about {} registers a thread (S {}, P {}, O {}, Q {}, the rest {}), {} "
                    "leave{} {}",
                    s.tile_m, s.tile_n, needed.total(), needed.s, needed.p, needed.o, needed.q, needed.other,
                    consumers(s), warpgroups == 1 ? "s" : "", granted)};
  }
  if (known_to_spill(problem, s)) {
    return {
        fmt::format("{} spills a few bytes at head_dim {}, values of {}{}, as compiling it showed; "
                    "take another tile, or change a switch",
                    to_string(Schedule{s}), problem.head_dim, problem.value_dim(),
                    problem.causal ? ", under a mask" : "")};
  }
  if (Legality several = legal_min_ctas(problem, s, target); !several) return several;
  const int shared = shared_bytes(problem, s);
  if (shared > target.shared_per_cta) {
    return {fmt::format("tile {}x{} with {} stage{} needs {} of shared memory, {} gives {}", s.tile_m,
                        s.tile_n, s.stages, s.stages == 1 ? "" : "s", kilobytes(shared), target.arch,
                        kilobytes(target.shared_per_cta))};
  }
  return {};
}

std::vector<Recipe> recipes_wgmma(const Problem& problem, const WgmmaSchedule& s, const Target&) {
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
  const bool one_step = has_one_step(problem, s);
  // From a tile's first block up: of values so wide moves cost next to nothing
  // (docs/performance/wgmma/device-memory.md).
  const bool upward = problem.causal && one_step && !split && !even;
  const bool first_inside = has_first_inside(problem, s);

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
      {"release_q_in_first", o_apart && !q_in_shared && first_inside},
      {"release_q_after_first", o_apart && !q_in_shared && !first_inside},
      {"release_q_after_scores", o_apart && q_in_shared},
      {"cluster", s.cluster > 1},
      {"min_ctas", s.min_ctas > 1},
      {"split", split},
      {"even", even},
      {"shares", split || even},
      {"own_keys", clusters == 1 && !even},
      {"pair_keys", s.cluster > 1 && !even},
      {"in_clusters", clusters > 1},
      {"alternate", s.cluster > 1 && problem.causal},
      {"upward", upward},
      {"downward", !upward && !split && !even},
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
      // 64 rows take dv / 32 clocks of the tensor cores a key, and 4 of the exponentials' units.
      {"short_values", s.overlap == 0 || dim_v <= 128},
      // Some block's exponentials are taken beside no values.
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
  // O's columns are stored by threads where CTAs share out a tile's keys.
  if (!split) recipe.maps.push_back({.operand = Operand::o, .box_rows = 64, .panels = 1, .packs = true});
  return {recipe};
}

}  // namespace flashjit
