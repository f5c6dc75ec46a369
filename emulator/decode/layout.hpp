// Where everything that a kernel names is: rows of registers, shared, local and module variables, parameters.
#pragma once

#include <map>
#include <string_view>
#include <vector>

#include "emulator/program.hpp"

namespace flashjit::emulator {

class Layout {
 public:
  // Lays out the variables of the module and of the function, and fills in the program's sizes.
  Layout(Program& program, const Function& entry, const std::vector<Variable>& locals);

  // The address of a symbol in its own state space (an offset in shared memory, a global's host address …).
  struct Place {
    Variable::Space space;
    u64 address;
    u64 bytes;
  };
  [[nodiscard]] const Place* find(std::string_view name) const;

  std::vector<int> rows;  // byte offset of each register's row, or predicate number; -1: untouched
  std::vector<RegisterClass> classes;                     // of each register
  u32 special_rows = 0;                                   // byte offset of the special registers' rows
  mutable std::map<std::pair<u64, bool>, u32> constants;  // (value, wide) to row
  mutable std::map<Special, u32> specials;

 private:
  std::map<std::string, Place, std::less<>> places_;
};

}  // namespace flashjit::emulator
