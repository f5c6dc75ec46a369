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

// {s4, s5, s6, s7}: four registers from number `first` on. `name` is their name without the number; the
// default names operands.
std::string four_registers(int first, const std::string& name = "%");

// Items `first` to `end` - 1, four to a line.
Lines four_to_a_line(int first, int end, const std::function<std::string(int)>& item);

// One instruction for each of a thread's accumulators, which have PTX registers of their own. In `text`, {0}
// stands for the register's name, {1} for which of the thread's two rows it belongs to, {2} for its number.
Lines for_each_register(const char* registers, int count, const char* text);

// What one instruction multiplies: 64 rows of A with `columns` columns of B, 16 deep.
struct WgmmaProduct {
  int columns = 0;
  bool accumulate = true;     // d += a b; else d = a b
  bool a_registers = false;   // A comes from four registers, else through a descriptor
  bool a_transposed = false;  // A lies along its 64 rows in memory, not along the sum
  bool b_transposed = false;  // B lies along its columns in memory, not along the sum
  std::string accumulators;   // the accumulators' PTX name without the number; empty: they are operands
  int first_accumulator = 0;  // its number
};

// Adds the instruction alone. a and b are the operands' names; the predicate `accumulate` decides in place of
// product.accumulate.
void add_wgmma(Lines& lines, DType dtype, const WgmmaProduct& product, const std::string& a,
               const std::string& b);

// The instruction, its operands numbered: accumulators, then A, then B.
Lines wgmma_instruction(DType dtype, const WgmmaProduct& product);
// "+f"(array[0]), "+f"(array[1]), …: the accumulators as C++ binds them; "=f" where they are only written.
Lines wgmma_accumulators(const std::string& array, const WgmmaProduct& product);

// A product that is deeper than an instruction, as one asm statement.
struct WgmmaChain {
  int steps = 1;                 // of 16
  int a_register_steps = 0;      // this many first steps have A in registers, the others in shared memory
  std::string a_registers;       // PTX name of these without the number; empty: they are operands
  std::optional<int> narrow_at;  // first step whose B descriptor has the other upper half
};

// The text of a chain: a fence, an instruction per step, and a commit. `product` gives the width, whether the
// first step accumulates, how A and B lie, and the accumulators. What has PTX registers of its own is no
// operand. The operands are: the accumulators, read and written; per step of A, four registers or a
// descriptor; the lower half of B's descriptor; then constants: how far each step lies into B, in units of 16
// bytes; the other upper half of B's descriptor, where there is one; and the upper half.
Lines wgmma_statement(DType dtype, WgmmaProduct product, const WgmmaChain& chain);

}  // namespace flashjit
