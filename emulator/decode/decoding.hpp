// One instruction while it is decoded: its operands as rows, for the functions that fill in its Ins.
#pragma once

#include <string>
#include <string_view>

#include "emulator/decode/opcodes.hpp"
#include "emulator/program.hpp"

namespace flashjit::emulator {

// Bytes of a row of 32-bit (or narrower) registers, and of 64-bit registers.
inline constexpr u32 kNarrowRow = 4 * kLanes;
inline constexpr u32 kWideRow = 8 * kLanes;

// Throws Error{unsupported} that quotes the statement's line.
[[noreturn]] void refuse(const Module& module, const Statement& statement, const std::string& what);

// What an Opcode's prepare function sees of the instruction to be decoded.
class Decoding {
 public:
  Decoding(Program& made, const Statement& of, const Match& parts, const class Layout& rows, Ins& into,
           bool with_checks)
      : program(made), statement(of), match(parts), layout(rows), ins(into), checked(with_checks) {}

  Program& program;
  const Statement& statement;
  const Match& match;
  const Layout& layout;
  Ins& ins;
  bool checked;

  [[nodiscard]] const Operand& operand(std::size_t i) const;
  [[nodiscard]] std::size_t operands() const { return statement.operands.size(); }
  [[nodiscard]] bool has(std::string_view modifier) const;      // whether it is one of the matched parts
  [[nodiscard]] u32 source(const Operand& operand, bool wide);  // row of a register or constant
  // The row of a register of so many bytes, or the row for results that nobody reads.
  [[nodiscard]] u32 destination(const Operand& operand, u32 bytes) const;
  [[nodiscard]] u32 predicate(const Operand& operand) const;
  [[nodiscard]] u32 constant(u64 value, bool wide);
  [[nodiscard]] RegisterClass class_of(const Operand& operand) const;
  [[nodiscard]] bool is_wide(const Operand& operand) const;  // a 64-bit register
  [[nodiscard]] u32 bytes_of(const Operand& operand) const;  // of a register; 0 for anything else
  [[nodiscard]] i64 immediate(std::size_t i) const;          // operand i, which must be an immediate
  // Append to the list the row of a source (or of its elements), or of a destination.
  void append(const Operand& operand, bool wide);
  void append_destination(const Operand& operand, u32 bytes);
  // The base row (64-bit or 32-bit) and offset of an address.
  struct Address {
    u32 row = 0;
    bool wide = false;
    i64 offset = 0;
  };
  [[nodiscard]] Address address(const Operand& memory);
  void set_class(OpClass to) { cls = to; }  // if the class depends on the modifiers
  void set_own_shared();                    // if the modifiers say .shared or .shared::cta
  OpClass cls = OpClass::integer;
  [[noreturn]] void fail(const std::string& what) const;

 private:
  [[nodiscard]] u64 value_of(const Operand& immediate, bool wide) const;
  // Calls visit(element) for each element of a vector, or for the operand itself.
  template <class Visit>
  void for_each_element(const Operand& operand, Visit visit) const;
};

}  // namespace flashjit::emulator
