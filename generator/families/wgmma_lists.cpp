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

std::map<std::string, std::string> accumulates(bool does) {
  return line(fmt::format("setp.{}.b32 accumulate, 0, 0;", does ? "eq" : "ne"));
}

int accumulator_operands(const WgmmaProduct& product) {
  return product.accumulators.empty() ? product.columns / 2 : 0;
}

}  // namespace

void add_line(Lines& lines, std::string text) {
  lines.push_back(line(std::move(text)));
}

const char* ptx_type(DType dtype) {
  return dtype == DType::bf16 ? "bf16" : "f16";
}

std::string four_registers(int first, const std::string& name) {
  return fmt::format("{{{0}{1}, {0}{2}, {0}{3}, {0}{4}}}", name, first, first + 1, first + 2, first + 3);
}

Lines four_to_a_line(int first, int end, const std::function<std::string(int)>& item) {
  Lines lines;
  for (int i = first; i < end; ++i) {
    if ((i - first) % 4 == 0) {
      add_line(lines, item(i));
    } else {
      lines.back()["line"] += " " + item(i);
    }
  }
  return lines;
}

Lines for_each_register(const char* registers, int count, const char* text) {
  return four_to_a_line(0, count, [&](int i) {
    return fmt::format(fmt::runtime(text), fmt::format("{}{}", registers, i), i / 2 % 2, i);
  });
}

void add_wgmma(Lines& lines, DType dtype, const WgmmaProduct& product, const std::string& a,
               const std::string& b) {
  const char* type = ptx_type(dtype);
  add_line(lines,
           fmt::format("wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{}", product.columns, type, type));
  constexpr int kPerLine = 16;
  const int count = product.columns / 2;
  for (int first = 0; first < count; first += kPerLine) {
    const int end = std::min(first + kPerLine, count);
    std::string text = first == 0 ? "{" : "";
    for (int i = first; i < end; ++i) {
      text += fmt::format("{}{}{}", product.accumulators.empty() ? "%" : product.accumulators,
                          product.first_accumulator + i, i + 1 < end ? ", " : "");
    }
    add_line(lines, text + (end == count ? "}," : ","));
  }
  const char* const transposed = product.a_registers ? "" : product.a_transposed ? " 1," : " 0,";
  add_line(lines,
           fmt::format("{}, {}, accumulate, 1, 1,{} {};", a, b, transposed, product.b_transposed ? 1 : 0));
}

Lines wgmma_instruction(DType dtype, const WgmmaProduct& product) {
  const int count = accumulator_operands(product);
  const std::string a = product.a_registers ? four_registers(count) : fmt::format("%{}", count);
  const std::string b = fmt::format("%{}", count + (product.a_registers ? 4 : 1));
  Lines lines{line("{"), line(".reg .pred accumulate;"), accumulates(product.accumulate)};
  add_wgmma(lines, dtype, product, a, b);
  add_line(lines, "}");
  return lines;
}

Lines wgmma_statement(DType dtype, WgmmaProduct product, const WgmmaChain& chain) {
  const int count = accumulator_operands(product);
  const int a_descriptors = count + (chain.a_registers.empty() ? 4 * chain.a_register_steps : 0);
  const int b = a_descriptors + chain.steps - chain.a_register_steps;
  const int b_steps = b + 1;
  const int other_half = b_steps + chain.steps;
  const int upper_half = chain.narrow_at ? other_half + 1 : other_half;

  Lines lines{line("{"),
              line(".reg .pred accumulate;"),
              line(".reg .b32 low;"),
              line(".reg .b64 b;"),
              line("wgmma.fence.sync.aligned;"),
              accumulates(product.accumulate)};
  for (int step = 0; step < chain.steps; ++step) {
    if (step == 1 && !product.accumulate) lines.push_back(accumulates(true));
    const bool narrow = chain.narrow_at && step >= *chain.narrow_at;
    add_line(lines, fmt::format("add.u32 low, %{}, %{};", b, b_steps + step));
    add_line(lines, fmt::format("mov.b64 b, {{low, %{}}};", narrow ? other_half : upper_half));
    product.a_registers = step < chain.a_register_steps;
    const std::string a = !product.a_registers
                              ? fmt::format("%{}", a_descriptors + step - chain.a_register_steps)
                          : chain.a_registers.empty() ? four_registers(count + 4 * step)
                                                      : four_registers(4 * step, chain.a_registers);
    add_wgmma(lines, dtype, product, a, "b");
  }
  add_line(lines, "wgmma.commit_group.sync.aligned;");
  add_line(lines, "}");
  return lines;
}

Lines wgmma_accumulators(const std::string& array, const WgmmaProduct& product) {
  const int count = product.columns / 2;
  return four_to_a_line(0, count, [&](int i) {
    return fmt::format("\"{}f\"({}[{}]){}", product.accumulate ? '+' : '=', array, i,
                       i + 1 < count ? "," : "");
  });
}

}  // namespace flashjit
