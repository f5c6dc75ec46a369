// Declarations of variables and parameters: .shared .align 16 .b8 name[64] and the like.
#pragma once

#include <string_view>
#include <vector>

#include "emulator/ptx/cursor.hpp"
#include "emulator/ptx/module.hpp"

namespace flashjit::emulator {

// Bytes of a type such as ".u32" or ".f64"; 0 if it is not a type.
u64 bytes_of_type(std::string_view type);

// Parses the part after the state space `space`, including the ';' at the end.
Variable parse_variable(Cursor& cursor, std::string_view space);

// Parses a list in parentheses.
std::vector<Variable> parse_parameters(Cursor& cursor);

}  // namespace flashjit::emulator
