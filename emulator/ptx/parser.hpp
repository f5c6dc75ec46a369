// From PTX text to a Module. Knows the grammar and the directives, but no instruction.
#pragma once

#include <string>

#include "emulator/ptx/module.hpp"

namespace flashjit::emulator {

// Throws Error{invalid_argument} that quotes the line.
Module parse_ptx(std::string text);

}  // namespace flashjit::emulator
