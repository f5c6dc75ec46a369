#include "generator/families/wgmma_fp32_products.hpp"

#include <algorithm>
#include <span>

#include "generator/families/mma_tile.hpp"
#include "generator/families/wgmma_registers.hpp"
#include "generator/families/wgmma_split_products.hpp"

namespace flashjit::wgmma_fp32 {

using namespace wgmma_forward;

namespace {

// The second and third sums are of what is 2^8 and 2^16 smaller.
constexpr Term kThreeSums[] = {{2, 0}, {0, 1, 1, 2}, {1, 0, 1, 2}, {0, 0}};

std::span<const Term> terms_of_scores(const Problem& problem, const WgmmaSchedule& schedule) {
  if (pairs_parts(problem, schedule)) return kThreeSums;
  return kOneSum;
}

}  // namespace

Problem share_of(const Problem& problem, const WgmmaSchedule& schedule) {
  Problem share = problem;
  share.head_dim = problem.head_dim / schedule.splits;
  share.head_dim_v = problem.value_dim() / schedule.splits;
  return share;
}

int columns_at_once(const Problem& problem, const WgmmaSchedule& schedule) {
  constexpr int kRoom = 140;  // registers of O and P beside which ptxas has room for the sums of a panel
  const int registers = problem.value_dim() / 2 + kSplitParts * schedule.tile_n / 4;
  return schedule.tile_m == 64 && registers > kRoom ? kPanelColumns / 2 : kPanelColumns;
}

int q_register_parts(const WgmmaSchedule& schedule) {
  return schedule.q_in_regs == 1 ? kSplitParts : schedule.q_in_regs == 2 ? 1 : 0;
}

int score_sums(const Problem& problem, const WgmmaSchedule& schedule) {
  return (pairs_parts(problem, schedule) ? 3 : 1) * schedule.tile_n / 2;
}

int q_reads(const Problem& problem, const WgmmaSchedule& schedule) {
  const std::span<const Term> terms = terms_of_scores(problem, schedule);
  return static_cast<int>(std::count_if(
      terms.begin(), terms.end(), [&](const Term& term) { return term.a >= q_register_parts(schedule); }));
}

void list_products(Recipe& recipe, const Problem& problem, const WgmmaSchedule& schedule) {
  const int steps = steps_of(problem.head_dim), q_parts = q_register_parts(schedule);
  const SplitProduct scores{.columns = schedule.tile_n,
                            .steps = steps,
                            .a_register_parts = q_parts,
                            .a_rows = 64,
                            .b_rows = schedule.tile_n};
  const int count = score_sums(problem, schedule);
  recipe.lists["scores"] =
      split_statement(scores, 2 * count / schedule.tile_n, terms_of_scores(problem, schedule));
  recipe.lists["score_sums"] = wgmma_accumulators("sum", {.columns = 2 * count, .accumulate = false});
  recipe.lists["q_registers"] = split_fragments("q", steps, q_parts);

  const int at_once = columns_at_once(problem, schedule);
  SplitProduct values{.columns = at_once,
                      .steps = schedule.tile_n / 16,
                      .a_register_parts = kSplitParts,
                      .b_rows = schedule.tile_n,
                      .b_transposed = true};
  recipe.lists["weights"] = split_fragments("p", values.steps, kSplitParts);
  recipe.lists["values"] = split_statement(values, 1, kOneSum);
  recipe.lists["value_sums"] = wgmma_accumulators("sum", {.columns = values.columns, .accumulate = false});
  values.columns = problem.value_dim() % at_once;
  recipe.lists["last_values"] = split_statement(values, 1, kOneSum);
  recipe.lists["last_value_sums"] =
      wgmma_accumulators("sum", {.columns = values.columns, .accumulate = false});
}

}  // namespace flashjit::wgmma_fp32
