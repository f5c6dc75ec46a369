#include "generator/families/wgmma_fp32_products.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "generator/families/mma_tile.hpp"
#include "generator/families/wgmma_lists.hpp"
#include "generator/families/wgmma_registers.hpp"

namespace flashjit::wgmma_fp32 {

using namespace wgmma_forward;

namespace {

// What is multiplied, 64 rows of A with B. Tiles in shared memory are SplitTile of
// templates/parts/wgmma_fp32/layout.cuh.
struct SplitProduct {
  int columns = 0;
  int steps = 0;             // of 16
  int a_register_parts = 0;  // the first so many parts of A are in registers, the others in shared memory
  int a_rows = 0;            // of a part of A's tile
  int b_rows = 0;            // of a part of B's tile
  bool b_transposed = false;
};

// A part of A with parts of B that lie side by side, the first of which is b.
struct Term {
  int a = 0, b = 0;
  int first = 0;  // accumulator, in multiples of the product's columns / 2
  int parts_of_b = 1;
};

// Bytes from a tile's first part to where a step of 16 columns begins in a part.
int columns_at(int step, int part, int rows) {
  return step / 4 * (kSplitParts * rows * kRowBytes) + part * rows * kRowBytes + step % 4 * 32;
}
// … and where one of 16 rows begins.
int rows_at(int step, int part, int rows) {
  return (part * rows + step * 16) * kRowBytes;
}

// The terms as one asm statement: a fence, the products and a commit. Operands: the accumulators; A's
// registers, step by step and part by part; the lower half of A's descriptor, where parts of it are in shared
// memory; the lower half of B's; and the upper half of both.
Lines statement(const SplitProduct& product, int sums, std::span<const Term> terms) {
  if (product.columns == 0) return {};
  const bool a_in_shared = product.a_register_parts < kSplitParts;
  const int of_sum = product.columns / 2, a_registers = sums * of_sum;
  const int a = a_registers + 4 * product.a_register_parts * product.steps;
  const int b = a + (a_in_shared ? 1 : 0), upper = b + 1;
  Lines lines;
  for (const char* text : {"{", ".reg .pred accumulate;", ".reg .b32 low;", ".reg .b64 b;"})
    add_line(lines, text);
  if (a_in_shared) add_line(lines, ".reg .b64 a;");
  add_line(lines, "wgmma.fence.sync.aligned;");
  const auto descriptor = [&](const char* name, int lower, int bytes) {
    add_line(lines, fmt::format("add.u32 low, %{}, {};", lower, bytes / 16));
    add_line(lines, fmt::format("mov.b64 {}, {{low, %{}}};", name, upper));
  };
  std::vector<bool> begun(sums);
  for (const Term& term : terms) {
    const bool in_registers = term.a < product.a_register_parts;
    for (int step = 0; step < product.steps; ++step) {
      if (step == 0 || (step == 1 && !begun[term.first]))
        add_line(lines,
                 fmt::format("setp.{}.b32 accumulate, 0, 0;", step == 1 || begun[term.first] ? "eq" : "ne"));
      if (!in_registers) descriptor("a", a, columns_at(step, term.a, product.a_rows));
      descriptor("b", b,
                 product.b_transposed ? rows_at(step, term.b, product.b_rows)
                                      : columns_at(step, term.b, product.b_rows));
      const WgmmaProduct one{.columns = term.parts_of_b * product.columns,
                             .a_registers = in_registers,
                             .b_transposed = product.b_transposed,
                             .first_accumulator = term.first * of_sum};
      const int registers = a_registers + 4 * (product.a_register_parts * step + term.a);
      add_wgmma(lines, DType::bf16, one, in_registers ? four_registers(registers) : "a", "b");
    }
    begun[term.first] = true;
  }
  add_line(lines, "wgmma.commit_group.sync.aligned;");
  add_line(lines, "}");
  return lines;
}

constexpr Term kOneSum[] = {{0, 2}, {1, 1}, {2, 0}, {0, 1}, {1, 0}, {0, 0}};
// The second and third sums are of what is 2^8 and 2^16 smaller.
constexpr Term kThreeSums[] = {{2, 0}, {0, 1, 1, 2}, {1, 0, 1, 2}, {0, 0}};

std::span<const Term> terms_of_scores(const Problem& problem, const WgmmaSchedule& schedule) {
  if (pairs_parts(problem, schedule)) return kThreeSums;
  return kOneSum;
}

// What an asm statement writes.
Lines sums(int count) {
  return four_to_a_line(0, count,
                        [&](int i) { return fmt::format("\"=f\"(sum[{}]){}", i, i + 1 < count ? "," : ""); });
}

// Fragments of A in registers, which an asm statement reads.
Lines fragments(const char* name, int steps, int parts) {
  return four_to_a_line(0, 4 * parts * steps, [&](int i) {
    return fmt::format("\"r\"({}[{}][{}][{}]),", name, i / 4 / parts, i / 4 % parts, i % 4);
  });
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
  recipe.lists["scores"] = statement(scores, 2 * count / schedule.tile_n, terms_of_scores(problem, schedule));
  recipe.lists["score_sums"] = sums(count);
  recipe.lists["q_registers"] = fragments("q", steps, q_parts);

  const int at_once = columns_at_once(problem, schedule);
  SplitProduct values{.columns = at_once,
                      .steps = schedule.tile_n / 16,
                      .a_register_parts = kSplitParts,
                      .b_rows = schedule.tile_n,
                      .b_transposed = true};
  recipe.lists["weights"] = fragments("p", values.steps, kSplitParts);
  recipe.lists["values"] = statement(values, 1, kOneSum);
  recipe.lists["value_sums"] = sums(values.columns / 2);
  values.columns = problem.value_dim() % at_once;
  recipe.lists["last_values"] = statement(values, 1, kOneSum);
  recipe.lists["last_value_sums"] = sums(values.columns / 2);
}

}  // namespace flashjit::wgmma_fp32
