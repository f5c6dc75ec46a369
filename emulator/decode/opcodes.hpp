// The table of opcodes: which modifier lists exist, what each operand is for, and which handler executes it.
//
// Every exec/*.inc ends with its rows. A row has everything about its instruction: parsing of operands,
// liveness, checks and counts all read it.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "emulator/program.hpp"

namespace flashjit::emulator {

class Decoding;

// The modifiers that the pattern's elements matched, in order; empty if an optional one is absent.
using Match = std::array<std::string_view, 16>;

enum OpcodeFlag : u8 {
  kOpAligned = 1,  // .aligned: every lane that has not exited must take part
  kOpEarly = 2,    // writes a destination before it has read every source, so they may not share a row
  kOpExit = 4,
  kOpWarpgroup = 8,  // wgmma: names rows that may be in flight
};

struct Opcode {  // NOLINT(clang-analyzer-optin.performance.Padding): in the order in which a row is read
  // Elements separated by '.'; an element is a name or (a|b|c), with '?' if it may be absent:
  // "add.(rn)?.ftz?.f32".
  // '#' stands for a number.
  // The whole modifier list must match.
  const char* pattern;
  // One letter per operand:
  //   d D  destination row of 32-bit (16-bit too), of 64-bit values;  p  destination predicate
  //   s S  source row;  q  source predicate, may be negated;  m  memory operand;  i  immediate
  //   v V  vector (or one) of destinations;  w W  of sources;  x  of both
  //   *    anything, handled by prepare; its registers are read;  o  likewise, written
  // '?' after a letter: the operand may be absent. Sources fill Ins::s in order.
  const char* operands;
  OpClass cls;
  Handler run;
  // Completes the decoded form if pattern and letters are not enough; may choose another handler.
  void (*prepare)(Decoding& decoding) = nullptr;
  u8 flags = 0;
};

// The rows of all files, with the handlers that were built for this CPU (AVX2 or portable).
std::span<const std::span<const Opcode>> opcode_tables();
bool using_avx2();

// Whether opcode is one of the pattern's modifier lists; fills in match.
bool matches(std::string_view pattern, std::string_view opcode, Match& match);

// The row for an opcode, or null. Finds the first word, then tries the rows in order.
const Opcode* find_opcode(std::string_view opcode, Match& match);

}  // namespace flashjit::emulator
