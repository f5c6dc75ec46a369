#include "tests/emulator/instruction_rows.hpp"

#include <bit>

namespace flashjit::emulator::tests {
namespace {

constexpr std::uint64_t kNan = 0x7fc00000, kInf = 0x7f800000, kOne = 0x3f800000, kTiny = 0x00000001,
                        kMinusZero = 0x80000000, kNan64 = 0x7ff8000000000000;
constexpr std::uint64_t f(float x) {
  return std::bit_cast<std::uint32_t>(x);
}
std::uint64_t d(double x) {
  return std::bit_cast<std::uint64_t>(x);
}

// The letter of register 4.
char result_class(const std::string& text) {
  for (std::size_t k = text.find('%'); k != std::string::npos; k = text.find('%', k + 1)) {
    if (text[k + 2] == '4' && (text[k + 3] < '0' || text[k + 3] > '9')) return text[k + 1];
  }
  return 'r';
}

}  // namespace

const std::vector<InstructionRow>& instruction_rows() {
  static const std::vector<InstructionRow> table = {
#include "tests/emulator/rows/convert.inc"
#include "tests/emulator/rows/float.inc"
#include "tests/emulator/rows/half.inc"
#include "tests/emulator/rows/integer.inc"
#include "tests/emulator/rows/lanes.inc"
  };
  return table;
}

std::string instruction_body(const InstructionRow& row) {
  std::string body =
      "cvt.u32.u64 %r1, %d1;\ncvt.u32.u64 %r2, %d2;\ncvt.u32.u64 %r3, %d3;\n"
      "mov.b32 %f1, %r1;\nmov.b32 %f2, %r2;\nmov.b32 %f3, %r3;\n"
      "cvt.u16.u32 %h1, %r1;\ncvt.u16.u32 %h2, %r2;\ncvt.u16.u32 %h3, %r3;\n"
      "mov.b64 %q1, %d1;\nmov.b64 %q2, %d2;\nmov.b64 %q3, %d3;\nsetp.ne.b32 %p1, 0, 0;\n";
  body += row.text;
  switch (result_class(row.text)) {
    case 'd':
      return body + "\nmov.b64 %d20, %d4;\n";
    case 'q':
      return body + "\nmov.b64 %d20, %q4;\n";
    case 'p':
      return body + "\nselp.b64 %d20, 1, 0, %p4;\n";
    case 'h':
      return body + "\ncvt.u64.u16 %d20, %h4;\n";
    case 'f':
      return body + "\nmov.b32 %r20, %f4;\ncvt.u64.u32 %d20, %r20;\n";
    default:
      return body + "\ncvt.u64.u32 %d20, %r4;\n";
  }
}

}  // namespace flashjit::emulator::tests
