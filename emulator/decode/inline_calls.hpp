// Pastes called functions into their callers, so that later steps see a single body.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "emulator/ptx/module.hpp"

namespace flashjit::emulator {

struct Inlined {
  std::vector<Statement> statements;
  std::vector<Register> registers;
  std::deque<std::string> names;  // the text of renamed operands
  std::vector<Variable>
      variables;  // of the body and of every pasted function, including the parameters of calls
};

// Throws Error{unsupported} for recursion, indirect calls and functions without a body.
Inlined inline_calls(const Module& module, const Function& entry);

}  // namespace flashjit::emulator
