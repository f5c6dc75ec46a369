// The operand lists of wgmma.
#include "generator/families/wgmma_lists.hpp"

#include <fmt/format.h>

namespace flashjit {

Lines wgmma_instruction(DType dtype, const WgmmaProduct& product) {
  const char* type = dtype == DType::bf16 ? "bf16" : "f16";
  const int count = product.columns / 2;
  const auto line = [](std::string text) { return std::map<std::string, std::string>{{"line", text}}; };
  const int b = count + (product.a_registers ? 4 : 1);
  const std::string asked = fmt::format("setp.ne.b32 accumulate, %{}, 0;", b + 1);
  Lines lines{
      line("{"), line(".reg .pred accumulate;"),
      line(product.asks         ? asked
           : product.accumulate ? "setp.eq.b32 accumulate, 0, 0;"
                                : "setp.ne.b32 accumulate, 0, 0;"),
      line(fmt::format("wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{}", product.columns, type, type))};
  for (int i = 0; i < count; i += 4) {
    lines.push_back(line(fmt::format("{}%{}, %{}, %{}, %{}{}", i == 0 ? "{" : "", i, i + 1, i + 2, i + 3,
                                     i + 4 == count ? "}," : ",")));
  }
  const std::string a = product.a_registers
                            ? fmt::format("{{%{}, %{}, %{}, %{}}}", count, count + 1, count + 2, count + 3)
                            : fmt::format("%{}", count);
  const std::string transposed = product.a_registers ? "" : product.a_transposed ? " 1," : " 0,";
  lines.push_back(
      line(fmt::format("{}, %{}, accumulate, 1, 1,{} {};", a, b, transposed, product.b_transposed ? 1 : 0)));
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
