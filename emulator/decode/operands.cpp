#include "emulator/decode/operands.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "emulator/decode/layout.hpp"

namespace flashjit::emulator {
namespace {

// The predicate after the bar of "%r1|%p1".
u16 pair_of(Decoding& decoding, const Operand& operand) {
  if (decoding.layout.classes[operand.second] != RegisterClass::predicate)
    decoding.fail("a predicate register is expected behind |");
  return static_cast<u16>(std::max(1, decoding.layout.rows[operand.second]));
}

// Bytes of the register that 'd' stands for. The type that an instruction writes is the opcode's last, except
// in cvt and set, which end with the source's type.
u32 narrow_bytes(std::string_view opcode) {
  const bool widens = opcode.find(".wide.") != std::string_view::npos || opcode.starts_with("movmatrix.");
  if (opcode.starts_with("cvt.") || opcode.starts_with("set.")) opcode = opcode.substr(0, opcode.rfind('.'));
  const std::string_view type = opcode.substr(opcode.rfind('.') + 1);
  static constexpr std::string_view kShort[] = {"b16", "u16", "s16", "f16", "bf16", "e4m3x2", "e5m2x2"};
  return std::ranges::find(kShort, type) != std::end(kShort) && !widens ? 2 : 4;
}

}  // namespace

std::string letters_for(const Module& module, const Statement& statement, const Opcode& row) {
  // If there are too few operands, optional ones are left out, from the right.
  const std::string_view all = row.operands;
  const auto optional = static_cast<std::size_t>(std::count(all.begin(), all.end(), '?'));
  const std::size_t required = all.size() - 2 * optional;
  std::size_t present = statement.operands.size() > required ? statement.operands.size() - required : 0;
  std::string letters;
  for (std::size_t k = 0; k < all.size(); ++k) {
    if (all[k] == '?') continue;
    if (k + 1 < all.size() && all[k + 1] == '?') {
      if (present == 0) continue;
      --present;
    }
    letters += all[k];
  }
  if (letters.size() != statement.operands.size()) {
    refuse(module, statement, fmt::format("{} operands, expected {}", statement.operands.size(), required));
  }
  return letters;
}

void fill_operands(Decoding& decoding, const std::string& letters) {
  Ins& ins = decoding.ins;
  int sources = 0;
  bool has_list = false, has_destination = false;
  auto next_source = [&]() -> u32& {
    if (sources >= 4) decoding.fail("too many operands");
    return ins.s[sources++];
  };
  for (std::size_t k = 0; k < letters.size(); ++k) {
    const Operand& operand = decoding.operand(k);
    switch (letters[k]) {
      case 'd':
      case 'D': {
        u32 row =
            decoding.destination(operand, letters[k] == 'D' ? 8 : narrow_bytes(decoding.statement.opcode));
        if (!has_destination)
          ins.d = row;
        else
          next_source() = row;
        has_destination = true;
        if (operand.second >= 0) ins.pair = pair_of(decoding, operand);
        break;
      }
      case 'p':
        if (!has_destination)
          ins.d = decoding.predicate(operand);
        else
          next_source() = decoding.predicate(operand);
        if (operand.second >= 0) ins.pair = pair_of(decoding, operand);
        has_destination = true;
        break;
      case 's':
        next_source() = decoding.source(operand, false);
        break;
      case 'S':
        next_source() = decoding.source(operand, true);
        break;
      case 'q': {
        // mov.pred also takes 0 and -1. Predicate 0 is always true.
        const bool constant = operand.kind == Operand::Kind::immediate;
        if (operand.negated || (constant && operand.value == 0)) ins.negate |= static_cast<u8>(1 << sources);
        next_source() = constant ? 0 : decoding.predicate(operand);
        break;
      }
      case 'm': {
        if (operand.kind != Operand::Kind::memory) decoding.fail("expected an address in brackets");
        Decoding::Address address = decoding.address(operand);
        if (address.wide) ins.wide |= static_cast<u8>(1 << sources);
        if (sources == 0 || ins.imm == 0)
          ins.imm = address.offset;
        else if (address.offset != 0)
          decoding.fail("two offsets in one instruction");
        next_source() = address.row;
        break;
      }
      case 'v':
      case 'V':
      case 'w':
      case 'W':
      case 'x':
        if (!has_list) {
          ins.list = static_cast<u32>(decoding.program.lists.size());
          ins.count = static_cast<u8>(operand.kind == Operand::Kind::vector ? operand.parts.size() : 1);
        }
        has_list = true;
        if (letters[k] == 'w' || letters[k] == 'W')
          decoding.append(operand, letters[k] == 'W');
        else
          decoding.append_destination(operand, letters[k] == 'V' ? 8 : 4);
        break;
      default:
        break;
    }
  }
}

}  // namespace flashjit::emulator
