// A function between its braces: registers, variables, labels, statements, lines of the source.
#pragma once

#include <unordered_map>

#include "emulator/ptx/cursor.hpp"
#include "emulator/ptx/module.hpp"

namespace flashjit::emulator {

// A line of the source to its latest index in Module::lines, over all functions of a module.
using LastLines = std::unordered_map<int, int>;

// Up to and including the closing brace; the opening one has been read.
void parse_body(Cursor& cursor, Module& module, LastLines& last_line, Function& function);

}  // namespace flashjit::emulator
