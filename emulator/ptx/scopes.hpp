// Names of registers, variables and labels. Each { } block inside a body has its own, since inline assembly
// declares names.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "emulator/ptx/cursor.hpp"
#include "emulator/ptx/module.hpp"

namespace flashjit::emulator {

class Scopes {
 public:
  explicit Scopes(Function& function) : function_(function) {}

  [[nodiscard]] std::size_t depth() const { return scopes_.size(); }
  void open() { scopes_.emplace_back(); }
  // Gives the branches in the scope their targets; unknown labels are left to the enclosing scope.
  void close(const Cursor& cursor);

  void declare(std::string name, RegisterClass cls);
  [[nodiscard]] int find_register(std::string_view name) const;  // -1: there is none

  // Returns the variable's name in the function: a new one if it hides a variable of an enclosing block.
  std::string declare_variable(const std::string& name);
  [[nodiscard]] std::string_view find_variable(std::string_view name) const;  // `name` if there is none

  void label(std::string_view name, int statement) { scopes_.back().labels[name] = statement; }
  std::vector<std::string_view>& target_list(std::string_view name) {
    return scopes_.back().target_lists[name];
  }
  void branch(int statement, std::string_view label) {
    scopes_.back().branches.push_back({statement, label});
  }

 private:
  struct Branch {
    int statement;
    std::string_view label;
  };
  struct Scope {
    std::unordered_map<std::string_view, int> registers;
    std::map<std::string, std::string_view, std::less<>> variables;  // to the name in the function
    std::unordered_map<std::string_view, int> labels;
    std::unordered_map<std::string_view, std::vector<std::string_view>> target_lists;
    std::vector<Branch> branches;
  };

  Function& function_;
  std::vector<Scope> scopes_;
  std::deque<std::string> names_;  // of registers; scopes refer to these
};

}  // namespace flashjit::emulator
