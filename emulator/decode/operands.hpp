// Reads an Opcode's operand letters: which letter each operand of a statement has, and what it puts into Ins.
#pragma once

#include <string>

#include "emulator/decode/decoding.hpp"

namespace flashjit::emulator {

// The letter of each operand of a statement; throws where there are too few or too many.
std::string letters_for(const Module& module, const Statement& statement, const Opcode& row);

// Fills rows, predicates, offset and list of the Decoding's Ins.
void fill_operands(Decoding& decoding, const std::string& letters);

}  // namespace flashjit::emulator
