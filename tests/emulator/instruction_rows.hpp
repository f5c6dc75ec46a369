// Scalar instructions, and for each operands with the result that the PTX ISA defines: edges of ranges, NaN,
// denormals, rounding.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flashjit::emulator::tests {

struct InstructionRow {
  const char* text;  // sources in register 1, 2, 3 of whatever class; the result in register 4
  std::uint64_t a = 0, b = 0, c = 0;
  std::uint64_t expected = 0;
};
const std::vector<InstructionRow>& instruction_rows();

// PTX that runs the row's instruction on the words in %d1, %d2, %d3 and leaves the result in %d20.
std::string instruction_body(const InstructionRow& row);

}  // namespace flashjit::emulator::tests
