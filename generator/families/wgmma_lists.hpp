// The operand lists of wgmma, which C++ cannot say: lines that a template pastes into an asm statement.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "flashjit/problem.hpp"

namespace flashjit {

using Lines = std::vector<std::map<std::string, std::string>>;  // each with a "line"

// What one instruction multiplies: 64 rows of A with `columns` columns of B, 16 deep.
struct WgmmaProduct {
  int columns = 0;
  bool accumulate = true;     // d += a b; else d = a b
  bool asks = false;          // a last operand says whether it accumulates, instead
  bool a_registers = false;   // A comes from four registers, else through a descriptor
  bool a_transposed = false;  // rows of A run along its 64 rows, not along the sum
  bool b_transposed = false;  // rows of B run along its columns, not along the sum
};

// The instruction, its operands numbered: accumulators, then A, then B.
Lines wgmma_instruction(DType dtype, const WgmmaProduct& product);
// "+f"(array[0]), "+f"(array[1]), …: the accumulators as C++ binds them; "=f" where they are only written.
Lines wgmma_accumulators(const std::string& array, const WgmmaProduct& product);

}  // namespace flashjit
