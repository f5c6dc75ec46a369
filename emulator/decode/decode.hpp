// From a Module and an entry's name to a Program: looks up opcodes, assigns rows to registers, resolves
// symbols.
#pragma once

#include <string_view>

#include "emulator/program.hpp"

namespace flashjit::emulator {

struct DecodeOptions {
  bool checked = true;  // use handlers with checks, and look for rules that are broken whatever runs
};

// Throws Error{not_found} if there is no such entry, Error{unsupported} that quotes the line of an unknown
// instruction.
Program decode(Module module, std::string_view entry, const DecodeOptions& options);

}  // namespace flashjit::emulator
