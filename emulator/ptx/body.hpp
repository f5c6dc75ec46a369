// The part of a function between braces: registers, variables, labels, statements, source lines.
#pragma once

#include <unordered_map>

#include "emulator/ptx/cursor.hpp"
#include "emulator/ptx/module.hpp"

namespace flashjit::emulator {

// From a source line to its latest index in Module::lines, over all functions of a module.
using LastLines = std::unordered_map<int, int>;

// Reads up to and including the closing brace; the opening brace has been read.
void parse_body(Cursor& cursor, Module& module, LastLines& last_line, Function& function);

}  // namespace flashjit::emulator
