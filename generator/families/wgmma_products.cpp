// The products of family wgmma's forward pass.
#include "generator/families/wgmma_products.hpp"

#include <fmt/format.h>

#include <functional>
#include <string>
#include <vector>

#include "generator/families/wgmma_lists.hpp"
#include "generator/families/wgmma_registers.hpp"

namespace flashjit::wgmma_forward {

namespace {

// Operands, each followed by a comma: "constraint"(name). In `name`, {0} stands for the number of the step of
// four, {1} for the place in that step, and {2} for the operand's number.
Lines inputs(char constraint, const char* name, int first, int end) {
  return four_to_a_line(first, end, [&](int i) {
    return fmt::format("\"{}\"({}),", constraint, fmt::format(fmt::runtime(name), i / 4, i % 4, i));
  });
}

// Four of O's registers are a piece in device memory; a thread's next piece lies 128 pieces further.
constexpr int kPieceStep = 128 * 16;

// Instructions for each piece. In the texts, {0} stands for the bytes from the first piece to this one, {1}
// to {4} for its registers' numbers.
Lines for_each_piece(int count, const std::vector<const char*>& texts) {
  Lines lines;
  for (int i = 0; i < count; i += 4) {
    for (const char* text : texts) {
      add_line(lines, fmt::format(fmt::runtime(text), i / 4 * kPieceStep, i, i + 1, i + 2, i + 3));
    }
  }
  return lines;
}

// How a panel of O leaves: for each 16 columns, the fragment that stmatrix takes, with zeros where the head
// dim has ended. Operands from `first` on: the address of the first panel's first fragment, the factors of
// the two rows, and how far this panel lies behind that address. The swizzle moves the 16-byte pieces of a
// row, so that a fragment's address is that of the first with up to two bits flipped. `register_of` gives the
// names of the panel's registers.
Lines staged(int columns, DType dtype, int first, const std::function<std::string(int)>& register_of) {
  Lines lines;
  for (int step = 0; 16 * step < columns; ++step) {
    for (int pair = 0; pair < 4; ++pair) {
      const int column = 16 * step + pair / 2 * 8;
      if (column >= columns) {
        add_line(lines, fmt::format("mov.b32 pair{}, 0;", pair));
        continue;
      }
      const int i = 8 * step + 2 * pair, factor = first + 1 + pair % 2;
      add_line(lines, fmt::format("mul.f32 x0, {}, %{}; mul.f32 x1, {}, %{};", register_of(i), factor,
                                  register_of(i + 1), factor));
      add_line(lines, fmt::format("cvt.rn.{}x2.f32 pair{}, x1, x0;", ptx_type(dtype), pair));
    }
    add_line(lines, fmt::format("xor.b32 to, %{}, {};", first, 32 * step));
    add_line(
        lines,
        fmt::format("stmatrix.sync.aligned.m8n8.x4.shared.b16 [to + %{}], {{pair0, pair1, pair2, pair3}};",
                    first + 3));
  }
  return lines;
}

}  // namespace

void list_products(Recipe& recipe, const Problem& problem, const WgmmaSchedule& schedule, bool narrow_k) {
  const int steps = steps_of(problem.head_dim);
  const int in_registers = q_register_steps(problem, schedule);
  WgmmaChain of_scores{.steps = steps, .a_register_steps = in_registers};
  if (narrow_k) of_scores.narrow_at = problem.head_dim / kPanelColumns * (kPanelColumns / 16);
  const WgmmaProduct scores{.columns = schedule.tile_n, .accumulate = false, .accumulators = "s"};
  recipe.lists["scores"] = wgmma_statement(problem.dtype, scores, of_scores);
  recipe.lists["q_registers"] = inputs('r', "q[{0}][{1}]", 0, 4 * in_registers);
  recipe.lists["q_descriptors"] = inputs('l', "q_columns[{2}]", in_registers, steps);
  recipe.lists["k_steps"] = inputs('n', "k_step({2})", 0, steps);

  const int keys = schedule.tile_n / 16;
  const WgmmaProduct values{.columns = problem.value_dim(), .b_transposed = true, .accumulators = "o"};
  recipe.lists["values"] =
      wgmma_statement(problem.dtype, values, {.steps = keys, .a_register_steps = keys, .a_registers = "p"});
  recipe.lists["v_steps"] = inputs('n', "v_step({2})", 0, keys);

  const int count = problem.value_dim() / 2;
  recipe.lists["output_zeros"] = for_each_register("o", count, "mov.f32 {0}, 0f00000000;");
  recipe.lists["output_scaled"] = for_each_register("o", count, "mul.f32 {0}, {0}, %{1};");
  recipe.lists["output_reads"] = for_each_register("o", count, "mov.f32 %{2}, {0};");
  recipe.lists["output_copies"] =
      wgmma_accumulators("o", {.columns = problem.value_dim(), .accumulate = false});
  // The numbers of a whole panel's registers are operands.
  const int whole = kPanelColumns / 2, panels = problem.value_dim() / kPanelColumns;
  recipe.lists["panel_registers"] = inputs('n', "32 * kPanel + {2}", 0, whole);
  recipe.lists["panel_staged"] =
      staged(kPanelColumns, problem.dtype, whole, [](int i) { return fmt::format("o%{}", i); });
  recipe.lists["last_panel_staged"] = staged(problem.value_dim() % kPanelColumns, problem.dtype, 0,
                                             [&](int i) { return fmt::format("o{}", panels * whole + i); });
  const int shared = has_even_shares(schedule) ? count : 0;  // registers that go through device memory
  recipe.lists["output_put"] =
      for_each_piece(shared, {"st.global.v4.f32 [%0 + {0}], {{o{1}, o{2}, o{3}, o{4}}};"});
  recipe.lists["output_taken"] =
      for_each_piece(shared, {"ld.global.v4.f32 {{o{1}, o{2}, o{3}, o{4}}}, [%0 + {0}];"});
  // Operands 1 and 2 are the weights of O's two rows, 3 and 4 those of the piece's.
  recipe.lists["output_added"] = for_each_piece(
      shared, {"ld.global.v4.f32 {{x0, x1, x2, x3}}, [%0 + {0}];", "mul.f32 x0, x0, %3;",
               "fma.rn.f32 o{1}, o{1}, %1, x0;", "mul.f32 x1, x1, %3;", "fma.rn.f32 o{2}, o{2}, %1, x1;",
               "mul.f32 x2, x2, %4;", "fma.rn.f32 o{3}, o{3}, %2, x2;", "mul.f32 x3, x3, %4;",
               "fma.rn.f32 o{4}, o{4}, %2, x3;"});
}

}  // namespace flashjit::wgmma_forward
