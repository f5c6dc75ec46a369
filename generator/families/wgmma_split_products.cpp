#include "generator/families/wgmma_split_products.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "generator/families/mma_tile.hpp"
#include "generator/families/wgmma_panels.hpp"

namespace flashjit::wgmma_fp32 {

using namespace wgmma;

namespace {

// Bytes from a tile's first part to where a step of 16 columns begins in a part.
int columns_at(int step, int part, int rows) {
  return step / 4 * (kSplitParts * rows * kRowBytes) + part * rows * kRowBytes + step % 4 * 32;
}
// … and where one of 16 rows begins.
int rows_at(int step, int part, int rows) {
  return (part * rows + step * 16) * kRowBytes;
}

}  // namespace

Lines split_statement(const SplitProduct& product, int sums, std::span<const Term> terms) {
  if (product.columns == 0) return {};
  const bool a_in_shared = std::any_of(terms.begin(), terms.end(),
                                       [&](const Term& term) { return term.a >= product.a_register_parts; });
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
  const auto accumulates = [&](bool does) {
    add_line(lines, fmt::format("setp.{}.b32 accumulate, 0, 0;", does ? "eq" : "ne"));
  };
  std::vector<bool> begun(sums, product.adds);
  if (product.adds) accumulates(true);
  for (const Term& term : terms) {
    const bool in_registers = term.a < product.a_register_parts;
    for (int step = 0; step < product.steps; ++step) {
      if (!product.adds && (step == 0 || (step == 1 && !begun[term.first])))
        accumulates(step == 1 || begun[term.first]);
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

Lines split_fragments(const char* name, int steps, int parts) {
  return four_to_a_line(0, 4 * parts * steps, [&](int i) {
    return fmt::format("\"r\"({}[{}][{}][{}]),", name, i / 4 / parts, i / 4 % parts, i % 4);
  });
}

}  // namespace flashjit::wgmma_fp32
