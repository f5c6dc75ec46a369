#include "emulator/ptx/scopes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace flashjit::emulator {

void Scopes::close(const Cursor& cursor) {
  Scope scope = std::move(scopes_.back());
  scopes_.pop_back();
  for (const Branch& branch : scope.branches) {
    std::vector<int>& targets = function_.statements[branch.statement].targets;
    if (auto list = scope.target_lists.find(branch.label); list != scope.target_lists.end()) {
      for (std::string_view name : list->second) {
        auto label = scope.labels.find(name);
        if (label == scope.labels.end()) cursor.fail(fmt::format("label \"{}\" is nowhere", name));
        targets.push_back(label->second);
      }
    } else if (auto label = scope.labels.find(branch.label); label != scope.labels.end()) {
      targets.push_back(label->second);
    } else if (scopes_.empty()) {
      cursor.fail(fmt::format("label \"{}\" is nowhere", branch.label));
    } else {
      scopes_.back().branches.push_back(branch);
    }
  }
}

void Scopes::declare(std::string name, RegisterClass cls) {
  names_.push_back(name);
  scopes_.back().registers[names_.back()] = static_cast<int>(function_.registers.size());
  function_.registers.push_back({cls, std::move(name)});
}

std::string Scopes::declare_variable(const std::string& name) {
  const bool hides = std::any_of(scopes_.begin(), std::prev(scopes_.end()),
                                 [&](const Scope& outer) { return outer.variables.contains(name); });
  const std::string& made =
      function_.variable_names.emplace_back(hides ? fmt::format("{}@{}", name, depth()) : name);
  scopes_.back().variables[name] = made;
  return made;
}

std::string_view Scopes::find_variable(std::string_view name) const {
  for (std::size_t i = scopes_.size(); i-- > 0;) {
    if (auto found = scopes_[i].variables.find(name); found != scopes_[i].variables.end())
      return found->second;
  }
  return name;
}

int Scopes::find_register(std::string_view name) const {
  for (std::size_t i = scopes_.size(); i-- > 0;) {
    if (auto found = scopes_[i].registers.find(name); found != scopes_[i].registers.end())
      return found->second;
  }
  return -1;
}

}  // namespace flashjit::emulator
