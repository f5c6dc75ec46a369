// Pastes called functions into their callers, so that everything after it sees one body.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "emulator/ptx/module.hpp"

namespace flashjit::emulator {

struct Inlined {
  std::vector<Statement> statements;
  std::vector<Register> registers;
  std::deque<std::string> names;  // that renamed operands look into
  std::vector<Variable>
      variables;  // of the body and of every function pasted in; parameters of calls among them
};

// Throws Error{unsupported} for recursion, indirect calls and functions without a body.
Inlined inline_calls(const Module& module, const Function& entry);

}  // namespace flashjit::emulator
