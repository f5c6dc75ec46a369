// From a Module and an entry's name to a Program: looks up opcodes, gives registers rows, resolves symbols.
#pragma once

#include <string_view>

#include "emulator/program.hpp"

namespace flashjit::emulator {

struct DecodeOptions {
  bool checked = true;  // handlers with checks, and the rules that can be shown to be broken without running
};

// Throws Error{not_found} if the entry is not there, Error{unsupported} that quotes the line of an unknown
// instruction.
Program decode(Module module, std::string_view entry, const DecodeOptions& options);

}  // namespace flashjit::emulator
