// Reads an Opcode's operand letters: which letter each operand of a statement has, and what the letter puts
// into Ins.
#pragma once

#include <string>

#include "emulator/decode/decoding.hpp"

namespace flashjit::emulator {

// The letter of each operand of a statement. Throws if there are too few or too many operands.
std::string letters_for(const Module& module, const Statement& statement, const Opcode& row);

// Fills in rows, predicates, offset and list of the Decoding's Ins.
void fill_operands(Decoding& decoding, const std::string& letters);

}  // namespace flashjit::emulator
