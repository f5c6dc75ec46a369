// The operand lists of wgmma.
#include "generator/families/wgmma_lists.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace flashjit {

namespace {

std::map<std::string, std::string> line(std::string text) {
  return {{"line", std::move(text)}};
}

std::string name_of(DType dtype, int columns) {
  const char* type = dtype == DType::bf16 ? "bf16" : "f16";
  return fmt::format("wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{}", columns, type, type);
}

// {%0, %1, …},
void add_accumulators(Lines& lines, int count) {
  constexpr int kPerLine = 16;
  for (int first = 0; first < count; first += kPerLine) {
    const int end = std::min(first + kPerLine, count);
    std::string text = first == 0 ? "{" : "";
    for (int i = first; i < end; ++i) text += fmt::format("%{}{}", i, i + 1 < end ? ", " : "");
    lines.push_back(line(text + (end == count ? "}," : ",")));
  }
}

std::string four_registers(int first) {
  return fmt::format("{{%{}, %{}, %{}, %{}}}", first, first + 1, first + 2, first + 3);
}

}  // namespace

Lines wgmma_instruction(DType dtype, const WgmmaProduct& product) {
  const int count = product.columns / 2;
  Lines lines{line("{"), line(".reg .pred accumulate;"),
              line(product.accumulate ? "setp.eq.b32 accumulate, 0, 0;" : "setp.ne.b32 accumulate, 0, 0;"),
              line(name_of(dtype, product.columns))};
  add_accumulators(lines, count);
  const int b = count + (product.a_registers ? 4 : 1);
  const std::string a = product.a_registers ? four_registers(count) : fmt::format("%{}", count);
  const std::string transposed = product.a_registers ? "" : product.a_transposed ? " 1," : " 0,";
  lines.push_back(
      line(fmt::format("{}, %{}, accumulate, 1, 1,{} {};", a, b, transposed, product.b_transposed ? 1 : 0)));
  lines.push_back(line("}"));
  return lines;
}

Lines wgmma_statement(DType dtype, const WgmmaProduct& product, const WgmmaChain& chain) {
  const int count = product.columns / 2;
  const int a_descriptors = count + 4 * chain.a_register_steps;
  const int b = a_descriptors + chain.steps - chain.a_register_steps;
  const int b_steps = b + 1;
  const int upper = b_steps + chain.steps;
  const int b_transposed = product.b_transposed ? 1 : 0;

  Lines lines{line("{"), line(".reg .pred accumulate;"), line(".reg .b32 low;"), line(".reg .b64 b;"),
              line("wgmma.fence.sync.aligned;")};
  const auto accumulate = [&lines](bool does) {
    lines.push_back(line(fmt::format("setp.{}.b32 accumulate, 0, 0;", does ? "eq" : "ne")));
  };
  accumulate(product.accumulate);
  for (int step = 0; step < chain.steps; ++step) {
    if (step == 1 && !product.accumulate) accumulate(true);
    const bool narrow = step >= chain.narrow_at.value_or(chain.steps);
    lines.push_back(line(fmt::format("add.u32 low, %{}, %{};", b, b_steps + step)));
    lines.push_back(line(fmt::format("mov.b64 b, {{low, %{}}};", narrow ? upper + 1 : upper)));
    lines.push_back(line(name_of(dtype, product.columns)));
    add_accumulators(lines, count);
    lines.push_back(
        line(step < chain.a_register_steps
                 ? fmt::format("{}, b, accumulate, 1, 1, {};", four_registers(count + 4 * step), b_transposed)
                 : fmt::format("%{}, b, accumulate, 1, 1, 0, {};",
                               a_descriptors + step - chain.a_register_steps, b_transposed)));
  }
  lines.push_back(line("wgmma.commit_group.sync.aligned;"));
  lines.push_back(line("}"));
  return lines;
}

Lines wgmma_accumulators(const std::string& array, const WgmmaProduct& product) {
  const int count = product.columns / 2;
  Lines lines;
  for (int i = 0; i < count; i += 4) {
    std::string line;
    for (int k = i; k < i + 4; ++k) {
      line += fmt::format("\"{}f\"({}[{}]){}", product.accumulate ? '+' : '=', array, k,
                          k + 1 == count   ? ""
                          : k + 1 == i + 4 ? ","
                                           : ", ");
    }
    lines.push_back({{"line", line}});
  }
  return lines;
}

}  // namespace flashjit
