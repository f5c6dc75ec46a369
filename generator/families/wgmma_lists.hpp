// The operand lists of wgmma, which C++ cannot say: lines that a template pastes into an asm statement.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "flashjit/problem.hpp"

namespace flashjit {

using Lines = std::vector<std::map<std::string, std::string>>;  // each with a "line"

void add_line(Lines& lines, std::string text);

// An element's type as PTX names it: "bf16" or "f16"; a pair of them has "x2" behind it.
const char* ptx_type(DType dtype);

// {s4, s5, s6, s7}: four registers, of a name but for their numbers; by default operands.
std::string four_registers(int first, const std::string& name = "%");

// The items from one number on, four to a line.
Lines four_to_a_line(int first, int end, const std::function<std::string(int)>& item);

// One instruction about each of a thread's accumulators, which have PTX registers of their own. `text` has
// places for the register's name, which of the thread's two rows it belongs to, and its number: {0}, {1},
// {2}.
Lines for_each_register(const char* registers, int count, const char* text);

// What one instruction multiplies: 64 rows of A with `columns` columns of B, 16 deep.
struct WgmmaProduct {
  int columns = 0;
  bool accumulate = true;     // d += a b; else d = a b
  bool a_registers = false;   // A comes from four registers, else through a descriptor
  bool a_transposed = false;  // rows of A run along its 64 rows, not along the sum
  bool b_transposed = false;  // rows of B run along its columns, not along the sum
  std::string accumulators;   // the accumulators' PTX registers but for their number; else they are operands
};

// The instruction, its operands numbered: accumulators, then A, then B.
Lines wgmma_instruction(DType dtype, const WgmmaProduct& product);
// "+f"(array[0]), "+f"(array[1]), …: the accumulators as C++ binds them; "=f" where they are only written.
Lines wgmma_accumulators(const std::string& array, const WgmmaProduct& product);

// A product that is deeper than an instruction, as one asm statement.
struct WgmmaChain {
  int steps = 1;                 // of 16
  int a_register_steps = 0;      // the first of them have A in registers, the others in shared memory
  std::string a_registers;       // these PTX registers but for their number; else they are operands
  std::optional<int> narrow_at;  // from which step on B's descriptor has the other upper half
};

// Its text: a fence, an instruction a step, and a commit. Of `product` the width, whether the first step
// accumulates, how A and B lie, and the accumulators. Operands, but for what has PTX registers of its own:
// the accumulators, read and written; of A four registers or a descriptor a step; the lower half of B's
// descriptor; then constants: how far each step lies into B, in units of 16 bytes, the other upper half of
// B's descriptor, where there is one, and the upper half.
Lines wgmma_statement(DType dtype, WgmmaProduct product, const WgmmaChain& chain);

}  // namespace flashjit
