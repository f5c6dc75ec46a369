#include "tests/gpu/instructions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>
#include <random>
#include <set>
#include <string_view>

#include "flashjit/error.hpp"
#include "tests/emulator/instruction_rows.hpp"
#include "tests/emulator/support.hpp"

namespace flashjit::test {
namespace {

using emulator::tests::InstructionRow;

constexpr std::uint32_t kThreads = 128, kCtas = 16;
constexpr std::size_t kCases = std::size_t{kThreads} * kCtas;

using Words = std::vector<std::uint64_t>;

// Numbers that a kernel meets, and those where rules have their edges.
std::uint64_t interesting(std::mt19937_64& random) {
  constexpr std::array<std::uint32_t, 20> kEdges = {
      0,          1,          0x7fffffff, 0x80000000, 0xffffffff, 0x3f800000, 0xbf800000,
      0x7f800000, 0xff800000, 0x7fc00000, 0x007fffff, 0x00800000, 0x80000001, 0x7f7fffff,
      0x33800000, 0x3c003c00, 0x7bff7bff, 0x04000400, 0x00010001, 0x42fe0000};
  const auto word = [&]() -> std::uint32_t {
    const std::uint64_t dice = random();
    switch (dice % 6) {
      case 0:
        return kEdges[(dice >> 8) % kEdges.size()];
      case 1:
        return static_cast<std::uint32_t>(dice >> 32) % 67 - 33;  // small integers
      case 2: {
        const float scaled = (static_cast<float>(dice >> 40) * 0x1p-24f - 0.5f) * 300.0f;
        return std::bit_cast<std::uint32_t>(scaled);
      }
      case 3: {
        const double wide = std::ldexp(1.0 + static_cast<double>(dice >> 40) * 0x1p-24,
                                       static_cast<int>(dice >> 8 & 255) - 150);
        return std::bit_cast<std::uint32_t>(static_cast<float>(wide));
      }
      default:
        return static_cast<std::uint32_t>(dice >> 32);
    }
  };
  const std::uint64_t dice = random() % 4;
  if (dice == 0) {
    const double value = (static_cast<double>(random() >> 11) * 0x1p-53 - 0.5) * 1e6;
    return std::bit_cast<std::uint64_t>(value);
  }
  return std::uint64_t{word()} << 32 | word();
}

// What the opcode's last modifier says of the result; 's' of "setp.lt.f32" is no number.
std::string_view result_type(std::string_view text) {
  const std::string_view opcode = text.substr(0, text.find(' '));
  if (opcode.starts_with("set")) return {};
  if (opcode.starts_with("cvt")) {  // the type that comes last but one
    const std::string_view front = opcode.substr(0, opcode.rfind('.'));
    return front.substr(front.rfind('.') + 1);
  }
  return opcode.substr(opcode.rfind('.') + 1);
}

bool is_nan_of(std::string_view type, std::uint64_t bits) {
  if (type == "f32") return (bits & 0x7fffffff) > 0x7f800000;
  if (type == "f64") return (bits & ~(1ull << 63)) > 0x7ff0000000000000ull;
  if (type == "f16") return (bits & 0x7fff) > 0x7c00;
  if (type == "bf16") return (bits & 0x7fff) > 0x7f80;
  return false;
}

bool alike(std::string_view type, std::uint64_t a, std::uint64_t b) {
  if (a == b) return true;
  if (type == "f16x2" || type == "bf16x2") {
    const std::string_view half = type.substr(0, type.size() - 2);
    return alike(half, a & 0xffff, b & 0xffff) && alike(half, a >> 16, b >> 16);
  }
  return is_nan_of(type, a) && is_nan_of(type, b);
}

// Distance in units of the last place; of opposite signs or of NaN and number: a great deal.
long long ulps(std::uint64_t a, std::uint64_t b) {
  const auto ordered = [](std::uint64_t bits) {
    const auto word = static_cast<long long>(bits & 0x7fffffff);
    return (bits >> 31 & 1) != 0 ? -word : word;
  };
  return std::llabs(ordered(a) - ordered(b));
}

Words run(runtime::Device& device, const std::string& ptx, const Words& in) {
  const auto kernel = device.load({.entry = "test", .ptx = ptx, .cubin = {}});
  Words out(kCases);
  void* from = device.allocate(in.size() * 8);
  void* to = device.allocate(out.size() * 8);
  device.copy_to_device(from, in.data(), in.size() * 8, nullptr);
  void* params[] = {&from, &to};
  device.launch(*kernel, {.grid = kCtas, .threads = kThreads}, params, nullptr);
  device.copy_to_host(out.data(), to, out.size() * 8, nullptr);
  device.free(from);
  device.free(to);
  return out;
}

std::string kernel_of(const InstructionRow& row, const std::string& arch) {
  return emulator::tests::kernel_text(
      fmt::format("mov.u32 %r40, %ctaid.x;\nmad.lo.s32 %r40, %r40, {}, %r30;\nmul.wide.u32 %d28, %r40, 24;\n"
                  "add.s64 %d28, %d30, %d28;\nmul.wide.u32 %d29, %r40, 8;\nadd.s64 %d29, %d31, %d29;\n"
                  "ld.global.b64 %d1, [%d28];\nld.global.b64 %d2, [%d28+8];\nld.global.b64 %d3, [%d28+16];\n"
                  "{}st.global.b64 [%d29], %d20;\n",
                  kThreads, emulator::tests::instruction_body(row)),
      arch);
}

}  // namespace

InstructionReport compare_instructions(runtime::Device& one, runtime::Device& other, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  InstructionReport report;
  std::set<std::string_view> seen;
  for (const InstructionRow& row : emulator::tests::instruction_rows()) {
    const std::string_view text = row.text;
    if (!seen.insert(text).second) continue;
    Words in(3 * kCases);
    for (std::uint64_t& word : in) word = interesting(random);
    // Division of integers by zero is left open by the ISA.
    const bool divides =
        (text.starts_with("div") || text.starts_with("rem")) && text.find(".f") == std::string_view::npos;
    for (std::size_t k = 0; divides && k < kCases; ++k) in[3 * k + 1] |= 1;
    // A bit field's place and length are words "restricted to 0..255".
    const bool extracts = text.starts_with("bfe");
    for (std::size_t k = 0; extracts && k < kCases; ++k) {
      in[3 * k + 1] &= 255;
      in[3 * k + 2] &= 255;
    }
    const std::string ptx = kernel_of(row, one.target().arch);
    std::array<Words, 2> results;
    try {
      results = {run(one, ptx, in), run(other, ptx, in)};
    } catch (const Error& error) {
      report.not_run.push_back(fmt::format("{} {}", text, error.what()));
      continue;
    }
    ++report.instructions;
    report.values += static_cast<long long>(kCases);
    const std::string_view type = result_type(text);
    const bool approximate = text.find(".approx") != std::string_view::npos;
    long long worst = 0;
    for (std::size_t k = 0; k < kCases; ++k) {
      const std::uint64_t a = results[0][k], b = results[1][k];
      if (alike(type, a, b)) continue;
      if (approximate) {
        worst = std::max(worst, ulps(a, b));
        continue;
      }
      report.different.push_back(fmt::format("{} of 0x{:x}, 0x{:x}, 0x{:x}: 0x{:x} and 0x{:x}", text,
                                             in[3 * k], in[3 * k + 1], in[3 * k + 2], a, b));
      break;
    }
    if (approximate) report.approximate.push_back(fmt::format("{} {} ulp", text, worst));
  }
  return report;
}

}  // namespace flashjit::test
