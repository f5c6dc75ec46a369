// The table of opcodes: which modifier lists exist, what each operand is for, and who executes it.
//
// Every exec/*.inc ends with its rows; one row is all there is to know of an instruction. Parsing operands,
// liveness, checks and counts all read it.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "emulator/program.hpp"

namespace flashjit::emulator {

class Decoding;

// The modifiers that a pattern's elements matched, in order; empty where an optional one is absent.
using Match = std::array<std::string_view, 16>;

enum OpcodeFlag : u8 {
  kOpAligned = 1,  // .aligned: every lane that has not exited must take part
  kOpEarly = 2,    // writes a destination before it has read every source: they may share no row
  kOpExit = 4,
  kOpWarpgroup = 8,  // wgmma: names rows that may be in flight
};

struct Opcode {  // NOLINT(clang-analyzer-optin.performance.Padding): in the order in which a row is read
  // Elements separated by '.'; an element is a name or (a|b|c), with '?' if it may be absent:
  // "add.(rn)?.ftz?.f32".
  // '#' stands for a number.
  // The whole modifier list must match.
  const char* pattern;
  // One letter an operand:
  //   d D  destination row of 32-bit (16-bit too), of 64-bit values;  p  destination predicate
  //   s S  source row;  q  source predicate, may be negated;  m  memory operand;  i  immediate
  //   v V  vector (or one) of destinations;  w W  of sources;  x  of both
  //   *    anything, taken care of by prepare; its registers are read;  o  likewise, written
  // '?' after a letter: the operand may be absent. Sources fill Ins::s in order.
  const char* operands;
  OpClass cls;
  Handler run;
  // Finishes the decoded form where pattern and letters do not say all; may choose another handler.
  void (*prepare)(Decoding& decoding) = nullptr;
  u8 flags = 0;
};

// The rows of this CPU's build of the handlers (AVX2 or portable), of all files.
std::span<const std::span<const Opcode>> opcode_tables();
bool using_avx2();

// Whether opcode is one of the pattern's modifier lists; fills match.
bool matches(std::string_view pattern, std::string_view opcode, Match& match);

// The row for an opcode, or null. Looks up by first word, then tries the rows in order.
const Opcode* find_opcode(std::string_view opcode, Match& match);

}  // namespace flashjit::emulator
