// One operand of a statement: register, number, symbol, address, vector.
#pragma once

#include "emulator/ptx/cursor.hpp"
#include "emulator/ptx/module.hpp"
#include "emulator/ptx/scopes.hpp"

namespace flashjit::emulator {

Operand parse_operand(Cursor& cursor, const Scopes& scopes);

}  // namespace flashjit::emulator
