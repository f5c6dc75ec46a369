// Mutants of the first kind: a kernel's PTX without one of its synchronising statements.
#pragma once

#include <string>
#include <vector>

#include "generator/render.hpp"

namespace flashjit::test {

struct SyncMutant {
  std::string entry;                  // of the kernel
  std::size_t begin = 0, length = 0;  // of the statement in the PTX
  int line = 0;                       // 1-based
  std::string statement;              // registers and numbers as "%" and "#"
  std::string file;                   // the innermost template line that is not a wrapper's …
  int template_line = 0;
  std::string code;  // … and its text
};

// All that wait, arrive, commit, fence or initialise a barrier, and the branches of wait loops. The PTX must
// have line info.
std::vector<SyncMutant> sync_mutants(const std::string& ptx, const KernelSource& source,
                                     const TemplateSet& templates);

// The PTX with the statement blanked out; its lines keep their numbers.
std::string without(const std::string& ptx, const SyncMutant& mutant);

}  // namespace flashjit::test
