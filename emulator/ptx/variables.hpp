// Declarations of variables and parameters: .shared .align 16 .b8 name[64] and the like.
#pragma once

#include <string_view>
#include <vector>

#include "emulator/ptx/cursor.hpp"
#include "emulator/ptx/module.hpp"

namespace flashjit::emulator {

// Bytes of a type such as ".u32" or ".f64"; 0 if it is none.
u64 bytes_of_type(std::string_view type);

// What follows the state space `space`, with the ';' at its end.
Variable parse_variable(Cursor& cursor, std::string_view space);

// A list in parentheses.
std::vector<Variable> parse_parameters(Cursor& cursor);

}  // namespace flashjit::emulator
