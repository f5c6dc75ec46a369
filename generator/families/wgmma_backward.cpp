// Family wgmma, backward: which schedules are legal, and what its templates are filled with.
#include <fmt/format.h>

#include <algorithm>

#include "generator/families/wgmma_backward_fp32.hpp"
#include "generator/families/wgmma_backward_layout.hpp"
#include "generator/recipe.hpp"

namespace flashjit {

using namespace wgmma_backward;

namespace {

constexpr int kThreads = 384;  // the producer's warpgroup and two that compute
constexpr int kProducerRegisters = 24;
constexpr int kConsumerRegisters = 240;  // 24 + 2 * 240 is what 384 threads are launched with
// With a warpgroup for dQ alone: 32 + 2 * 192 + 96 is what 512 threads are launched with.
constexpr int kPairThreads = 512;
constexpr int kPairProducerRegisters = 32;
constexpr int kPairConsumerRegisters = 192;
constexpr int kPairDqRegisters = 96;
constexpr int kPairColumns = 192;  // of one product, at the most; 256 take two

// Registers that a consumer needs beside its fragments. Found by compiling: from here on ptxas neither spills
// nor serialises products.
constexpr int kOtherRegisters = 28;
constexpr int kOtherApart = 22;   // more, for 128 queries where dQ has a pass of its own
constexpr int kOtherAdded = 20;   // more, for 128 queries where it has none
constexpr int kOtherOfPair = 16;  // fewer: only a quarter of P is live beside S

// Below this head_dim the warp that turns sums into gradients spills if it also turns those of dV and dK.
constexpr int kLeastOfSplits = 16;

// Whether a pair has a product, or two halves of one, for so many columns.
bool has_pair_product(int columns) {
  return columns <= kPairColumns || columns == 256;
}

// What a CTA of a kernel owns; it walks along the other.
enum class Owns { keys, queries };

std::vector<Constant> constants(const Problem& problem, Owns owns, int tile_m, int tile_n, int score_columns,
                                int shared_bytes, bool pair = false) {
  return {
      number("kHeadDim", problem.head_dim, "columns of Q, K, dQ and dK"),
      number("kHeadDimV", problem.value_dim(), "columns of V, dO and dV"),
      number("kTileM", tile_m, owns == Owns::queries ? "query rows per CTA" : "query rows per step"),
      number("kTileN", tile_n, owns == Owns::keys ? "keys per CTA" : "keys per step"),
      number("kScoreColumns", score_columns, "of the scores of a warpgroup's 64 rows"),
      number("kThreads", pair ? kPairThreads : kThreads, "per CTA, the producer's warpgroup included"),
      number("kCtasPerTile", pair ? 2 : 1, "that work on one tile of the grid together"),
      number("kProducerRegisters", pair ? kPairProducerRegisters : kProducerRegisters,
             "per thread, after setmaxnreg"),
      number("kConsumerRegisters", pair ? kPairConsumerRegisters : kConsumerRegisters,
             "per thread, after setmaxnreg"),
      number("kSharedBytes", shared_bytes, "of dynamic shared memory"),
  };
}

std::map<std::string, bool> sections(const Problem& problem) {
  return {{"bf16", problem.dtype == DType::bf16},
          {"fp16", problem.dtype == DType::fp16},
          {"cvt_pairs", true},
          {"lse", false},
          {"causal", problem.causal},
          {"dq", false},
          {"dv", true},
          {"sums_apart", false},
          {"pair", false},
          {"exchange", false},
          {"k_read", false},
          {"diagonal", false},
          {"dq_transposed", false},
          {"dq_direct", false},
          {"past_columns", false},
          {"dq_staged", false},
          {"dq_rest", false},
          {"dq_ready", false},
          {"claims_ready", false},
          {"ds_under_dv", false},
          {"dp_early", false},
          {"dq_ordered", false},
          {"rotated", false},
          {"diagonal_first", false},
          {"spread", false},
          {"step_before", false},
          {"waits_for_later", false},
          {"sections", false},
          {"last_keys_first", false},
          {"divided", false},
          {"in_a_row", true},
          {"dq_before_dk", false},
          {"dq_after_dk", false},
          {"splits", false},
          {"column_steps", true},
          {"turns", false}};
}

void list(Recipe& recipe, DType dtype, const std::string& instruction, const std::string& registers,
          const std::string& array, const WgmmaProduct& product) {
  recipe.lists[instruction] = wgmma_instruction(dtype, product);
  recipe.lists[registers] = wgmma_accumulators(array, product);
}

// The products that every main kernel has, and those of dV and of a shared dQ, whose sections may be absent.
void list_products(Recipe& recipe, const Problem& problem, int score_columns, const WgmmaProduct& dq,
                   bool pair = false) {
  const DType dtype = problem.dtype;
  const auto parts = [pair](int columns) { return pair && columns > kPairColumns ? 2 : 1; };
  list(recipe, dtype, "scores_first", "scores_written", "s", {.columns = score_columns, .accumulate = false});
  list(recipe, dtype, "scores_next", "scores_registers", "s", {.columns = score_columns});
  list(recipe, dtype, "gradient_qk", "gradient_qk_registers", "d",
       {.columns = problem.head_dim / parts(problem.head_dim), .a_registers = true, .b_transposed = true});
  list(recipe, dtype, "gradient_v", "gradient_v_registers", "d",
       {.columns = problem.value_dim() / parts(problem.value_dim()),
        .a_registers = true,
        .b_transposed = true});
  list(recipe, dtype, "dq_next", "dq_registers", "d", dq);
  WgmmaProduct first = dq;
  first.accumulate = false;
  list(recipe, dtype, "dq_first", "dq_written", "d", first);
  WgmmaProduct rest = dq;
  rest.columns = dq_rest(problem);
  list(recipe, dtype, "dq_rest_next", "dq_rest_registers", "d", rest);
  rest.accumulate = false;
  list(recipe, dtype, "dq_rest_first", "dq_rest_written", "d", rest);
}

// One box moves all panels where the head dim fills them (TensorMapSpec).
int box_panels(int columns) {
  return columns % kPanelColumns == 0 ? panels_of(columns) : 1;
}

Recipe recipe_owners(const Problem& problem, const WgmmaBackwardSchedule& s, const Target& target) {
  const int stages = key_stages(problem, s, target);
  const int bytes = owners_bytes(problem, s, stages);
  const int qk = box_panels(problem.head_dim), v = box_panels(problem.value_dim());
  Recipe recipe;
  recipe.kernel = is_pair(s)      ? "kernels/backward_wgmma_pair.cu"
                  : sums_apart(s) ? "kernels/backward_wgmma_apart.cu"
                                  : "kernels/backward_wgmma.cu";
  recipe.constants = constants(problem, Owns::keys, s.tile_m, s.tile_n, s.tile_m, bytes, is_pair(s));
  recipe.constants.push_back(
      number("kKeyStages", stages,
             stages > 1 ? "tiles of K and V: this one's, and the next one's" : "tile of K and V at a time"));
  recipe.sections = sections(problem);
  recipe.sections["sums_apart"] = sums_apart(s);
  recipe.sections["pair"] = is_pair(s);
  recipe.sections["exchange"] = exchange_stages(problem, s) > 0;
  recipe.sections["k_read"] = exchange_stages(problem, s) > 0 && s.splits == 1;
  recipe.sections["dq"] = adds_dq(s);
  recipe.sections["diagonal"] = problem.causal && !sums_apart(s) && s.tile_m < 128;
  recipe.sections["dq_transposed"] = transposes_dq(s);
  recipe.sections["dq_direct"] = adds_dq(s) && !stages_dq(problem, s);
  recipe.sections["past_columns"] = s.tile_m == 64 && problem.head_dim % kPanelColumns != 0;
  recipe.sections["dq_staged"] = stages_dq(problem, s);
  recipe.sections["dq_rest"] = is_pair(s) && stages_dq(problem, s);
  recipe.sections["claims_ready"] = is_pair(s) && sums_dq(s);
  recipe.sections["dq_ready"] = is_pair(s) && sums_dq(s) && !stages_dq(problem, s);
  recipe.sections["ds_under_dv"] = forms_ds_under_dv(problem, s);
  recipe.sections["dp_early"] = stages_dq(problem, s) && transposes_dq(s);
  recipe.sections["dq_ordered"] = is_ordered(s);
  recipe.sections["rotated"] = rotates(problem, s);
  recipe.sections["diagonal_first"] = sums_dq(s) && problem.causal;
  recipe.sections["spread"] = rotates(problem, s) || sums_dq(s);
  recipe.sections["step_before"] = adds_dq(s) && !stages_dq(problem, s) && !is_pair(s);
  recipe.sections["waits_for_later"] = waits_for_later(problem, s);
  recipe.sections["sections"] = problem.causal && !is_ordered(s);
  recipe.sections["last_keys_first"] = is_ordered(s) && problem.causal;
  recipe.sections["dq_before_dk"] = sums_dq(s) && s.staged == 0;
  recipe.sections["dq_after_dk"] = is_ordered(s) || s.staged > 0;
  recipe.sections["splits"] = s.splits > 1;
  recipe.sections["divided"] = divides_tiles(problem, s);
  recipe.sections["in_a_row"] = !divides_tiles(problem, s) && !recipe.sections["diagonal_first"];
  recipe.sections["column_steps"] = s.splits == 1 || !transposes_dq(s);
  recipe.sections["turns"] = s.turns > 0;
  if (exchange_stages(problem, s) > 0) {
    recipe.constants.push_back(
        number("kExchangeStages", exchange_stages(problem, s), "of what the warpgroups hand to each other"));
  }
  if (adds_dq(s)) {
    recipe.constants.push_back(
        number("kDqN", dq_product(problem, s).columns, "columns of a warpgroup's product for dQ"));
  }
  if (stages_dq(problem, s)) {
    recipe.constants.push_back(
        number("kShareStages", share_stages(problem, s), "of a step's dQ on its way out"));
  }
  if (recipe.sections["dq_rest"]) {
    recipe.constants.push_back(number("kDqRestN", dq_rest(problem), "columns of its second product for dQ"));
  }
  if (is_pair(s)) {
    recipe.constants.push_back(
        number("kDqRegisters", kPairDqRegisters, "registers of who sums dQ, per thread, after setmaxnreg"));
  }
  list_products(recipe, problem, s.tile_m, dq_product(problem, s), is_pair(s));
  recipe.geometry = {.grid = Grid::key_tiles,
                     .tile_m = s.tile_m,
                     .tile_n = s.tile_n * ctas_per_tile(s),
                     .threads = is_pair(s) ? kPairThreads : kThreads,
                     .shared_bytes = bytes,
                     .cluster = ctas_per_tile(s),
                     .persistent = true,
                     .cooperative = waits_for_later(problem, s),
                     .dynamic = true,
                     .divides = divides_tiles(problem, s)};
  const int k = is_pair(s) ? 1 : qk;  // a pair's K also comes in parts
  recipe.maps = {{Operand::q, s.tile_m, qk},
                 {Operand::k, s.tile_n, k},
                 {Operand::v, s.tile_n, v},
                 {Operand::dout, s.tile_m, v}};
  if (s.splits == 1) {
    recipe.maps.push_back({Operand::dk, s.tile_n, qk});
    recipe.maps.push_back({Operand::dv, s.tile_n, v});
  }
  return recipe;
}

// The kernel that owns rows of dQ.
Recipe recipe_dq(const Problem& problem, const Target& target) {
  const int slots = ring_slots(problem, target);
  const int bytes = ring_bytes(problem, slots);
  const int qk = box_panels(problem.head_dim), v = box_panels(problem.value_dim());
  Recipe recipe;
  recipe.kernel = "kernels/backward_wgmma_dq.cu";
  recipe.suffix = "_dq";
  recipe.constants = constants(problem, Owns::queries, kDqRows, kDqKeys, kDqKeys, bytes);
  recipe.constants.push_back(number("kSlots", slots, "of the ring that K and V walk through"));
  recipe.sections = sections(problem);
  recipe.sections["dv"] = false;
  recipe.sections["sections"] = problem.causal;
  list_products(recipe, problem, kDqKeys, {.columns = kDqKeys});
  recipe.geometry = {
      .tile_m = kDqRows, .threads = kThreads, .shared_bytes = bytes, .persistent = true, .dynamic = true};
  recipe.maps = {{Operand::q, 64, qk},
                 {Operand::k, kDqKeys, qk},
                 {Operand::v, kDqKeys, v},
                 {Operand::dout, 64, v},
                 {Operand::dq, 64, qk}};
  return recipe;
}

}  // namespace

Legality legal_wgmma_backward(const Problem& problem, const WgmmaBackwardSchedule& s, const Target& target) {
  if (problem.dtype == DType::fp32) return legal_wgmma_backward_fp32(problem, s, target);
  if (s.stages != 2) return {fmt::format("stages is {}, 16 bits have 2", s.stages)};
  const int dim = problem.head_dim, dim_v = problem.value_dim();
  const int panels = panels_of(dim);
  if (s.tile_n != 128 && s.tile_n != 64) {
    return {fmt::format(
        "tile_n is {}, may be 128 (two warpgroups own 64 keys each) or 64 (one owns dV, one dK)", s.tile_n)};
  }
  if (s.tile_m != 64 && s.tile_m != 80 && s.tile_m != 128) {
    return {fmt::format("tile_m is {}, may be 64, 80 or 128", s.tile_m)};
  }
  if (transposes_dq(s) && (!adds_dq(s) || dim != 128)) {
    return {fmt::format("tile_m 80 adds up dQ (dq1, dq2) of head_dim 128, not dq{} of {}", s.dq, dim)};
  }
  if (is_pair(s) && panels <= 2) {
    return {
        fmt::format("tile_n 64 with dq{} gives each of two CTAs half of dQ's columns, which takes a "
                    "head_dim above 128, not {}; use tile_n 128",
                    s.dq, dim)};
  }
  if (sums_apart(s) && s.turns > 0) {
    return {"turns are between two warpgroups that do the same; those of tile_n 64 do not"};
  }
  if (s.splits > 1 && (!sums_dq(s) || is_pair(s) || dim < kLeastOfSplits)) {
    return {fmt::format("splits is {}, may be more than 1 with tile_n 128, dq1 and a head_dim of {} or more",
                        s.splits, kLeastOfSplits)};
  }
  if (s.staged > 0 && (s.tile_m != 64 || s.tile_n != 128 || !sums_dq(s))) {
    return {fmt::format("staged is 1, may be 1 with tile_m 64, tile_n 128 and dq1, not with {}x{} and dq{}",
                        s.tile_m, s.tile_n, s.dq)};
  }
  if (sums_apart(s) && s.tile_m != 64)
    return {fmt::format("tile_n 64 needs tile_m 64, tile_m is {}", s.tile_m)};
  if (adds_dq(s) && s.tile_m == 128 && panels > 1) {
    return {
        fmt::format("tile_m 128 gives each warpgroup 64 rows of dQ, which head_dim {} makes too wide for "
                    "its registers; use tile_m 64",
                    dim)};
  }
  if (adds_dq(s) && !is_pair(s) && s.tile_m == 64 && panels != 2) {
    return {fmt::format(
        "tile_m 64 with dq{} gives each of two warpgroups 64 columns of dQ, which takes a head_dim "
        "of 65 to 128, not {}; use {}",
        s.dq, dim,
        panels < 2                                         ? "tile_m 128"
        : has_pair_product(dim) && has_pair_product(dim_v) ? "tile_n 64"
                                                           : "tile_n 64 with dq0")};
  }
  for (const auto& [name, columns] : {std::pair{"head_dim", dim}, {"head_dim_v", dim_v}}) {
    if (is_pair(s) && !has_pair_product(columns)) {
      return {
          fmt::format("tile_n 64 with dq{} has products of up to {} columns, or 256 in two halves; {} is {}; "
                      "use dq0",
                      s.dq, kPairColumns, name, columns)};
    }
  }
  const int dk = sums_apart(s) && dim_v > dim ? 0 : dim / 2;
  const int dv = sums_apart(s) && dim_v <= dim ? 0 : dim_v / 2;
  const int dq = adds_dq(s) && !is_pair(s) ? dq_product(problem, s).columns / 2 : 0;
  // At first both S and dP are whole. Then P takes the place of S, or dS that of both, and dQ is begun.
  const int beside_dq = transposes_dq(s) ? s.tile_m / 4 : s.tile_m / 4 + s.tile_m / 2;
  const int scores =
      sums_apart(s) ? s.tile_m / 4 + s.tile_m / 2 : std::max(dq + beside_dq, s.tile_m / 2 + s.tile_m / 2);
  const int other = is_pair(s)        ? kOtherOfPair
                    : s.tile_m == 128 ? kOtherRegisters + (adds_dq(s) ? kOtherAdded : kOtherApart)
                                      : kOtherRegisters;
  const int needed = dk + dv + scores + other;
  const int available = is_pair(s) ? kPairConsumerRegisters : kConsumerRegisters;
  if (needed > available) {
    return {fmt::format(
        "tile {}x{} needs about {} registers a thread (dK {}, dV {}, S, P, dP and dQ {}, the rest {}), "
        "two warpgroups leave {}",
        s.tile_m, s.tile_n, needed, dk, dv, scores, other, available)};
  }
  const int shared = owners_bytes(problem, s, 1);
  if (shared > target.shared_per_cta)
    return too_much_shared(fmt::format("tile {}x{}", s.tile_m, s.tile_n), shared, target);
  return {};
}

std::vector<Recipe> recipes_wgmma_backward(const Problem& problem, const WgmmaBackwardSchedule& s,
                                           const Target& target) {
  if (problem.dtype == DType::fp32) return recipes_wgmma_backward_fp32(problem, s, target);
  const auto way = static_cast<DqWay>(s.dq);
  std::vector<Recipe> recipes{recipe_preprocess(problem, s), recipe_owners(problem, s, target)};
  if (way == DqWay::own_pass) recipes.push_back(recipe_dq(problem, target));
  return recipes;
}

}  // namespace flashjit
