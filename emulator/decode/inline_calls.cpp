#include "emulator/decode/inline_calls.hpp"

#include <fmt/format.h>

#include <map>
#include <string>

#include "flashjit/error.hpp"

namespace flashjit::emulator {
namespace {

constexpr int kMaxDepth = 16;
constexpr std::size_t kMaxStatements = 2'000'000;

bool is_call(const Statement& statement) {
  return statement.opcode == "call" || statement.opcode == "call.uni";
}
bool is_return(const Statement& statement) {
  return statement.opcode == "ret" || statement.opcode == "ret.uni";
}

class Paster {
 public:
  explicit Paster(const Module& module) : module_(module) {}

  // Appends the function's body. `depth` 0 is the entry, whose ret stays a ret.
  void paste(const Function& function, const std::map<std::string, std::string, std::less<>>& arguments,
             int depth) {
    if (depth > kMaxDepth) {
      throw Error(
          ErrorCode::unsupported,
          fmt::format("calls of \"{}\" are nested too deeply; recursion is not supported", function.name));
    }
    if (function.registers.size() > kMaxRegisters - out.registers.size())
      throw Error(ErrorCode::unsupported, "the kernel is too large");
    const int first_register = static_cast<int>(out.registers.size());
    out.registers.insert(out.registers.end(), function.registers.begin(), function.registers.end());
    std::map<std::string, std::string, std::less<>> names = arguments;
    for (const Variable& variable : function.variables) {
      Variable copy = variable;
      if (depth > 0 && variable.space != Variable::Space::shared)
        copy.name = fmt::format("{}.{}", variable.name, copies_++);
      // Blocks of a body, one after the other, may declare the same name (param0 of every call). One slot
      // serves all of them, if it is large enough.
      names[variable.name] = copy.name;
      merge(std::move(copy));
    }
    std::vector<int> place(function.statements.size() + 1);
    std::vector<std::size_t> branches;
    for (std::size_t i = 0; i < function.statements.size(); ++i) {
      place[i] = static_cast<int>(out.statements.size());
      // Calls count although they leave no statement: functions that only call each other would never end.
      if (++read_ > kMaxStatements) throw Error(ErrorCode::unsupported, "the kernel is too large");
      Statement copy = function.statements[i];
      if (copy.guard >= 0) copy.guard += first_register;
      for (Operand& operand : copy.operands) rename(operand, first_register, names);
      if (is_call(copy)) {
        call(copy, depth);
        continue;
      }
      if (depth > 0 && is_return(copy)) {
        copy.opcode = "bra";
        copy.targets = {static_cast<int>(function.statements.size())};
      }
      if (!copy.targets.empty()) branches.push_back(out.statements.size());
      out.statements.push_back(std::move(copy));
    }
    place.back() = static_cast<int>(out.statements.size());
    for (std::size_t branch : branches) {
      for (int& target : out.statements[branch].targets) target = place[target];
    }
  }

  Inlined out;

 private:
  void merge(Variable variable) {
    for (Variable& known : out.variables) {
      if (known.name != variable.name) continue;
      known.bytes = std::max(known.bytes, variable.bytes);
      known.align = std::max(known.align, variable.align);
      return;
    }
    out.variables.push_back(std::move(variable));
  }

  void rename(Operand& operand, int first_register,
              const std::map<std::string, std::string, std::less<>>& names) {
    if (operand.reg >= 0) operand.reg += first_register;
    if (operand.second >= 0) operand.second += first_register;
    if (operand.kind == Operand::Kind::symbol) {
      if (auto found = names.find(operand.name); found != names.end() && found->second != operand.name) {
        operand.name = out.names.emplace_back(found->second);
      }
    }
    for (Operand& part : operand.parts) rename(part, first_register, names);
  }

  void call(const Statement& statement, int depth) {
    std::string_view callee;
    const Operand* results = nullptr;
    const Operand* values = nullptr;
    for (const Operand& operand : statement.operands) {
      if (operand.kind == Operand::Kind::symbol && callee.empty())
        callee = operand.name;
      else if (operand.kind == Operand::Kind::vector)
        (callee.empty() ? results : values) = &operand;
    }
    const Function* function = module_.find(callee);
    if (function == nullptr || !function->is_defined || statement.guard >= 0) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("PTX line {}: this call is not supported: \"{}\"", statement.line,
                              module_.line_text(statement.line)),
                  "only direct calls of functions in the same module are executed");
    }
    std::map<std::string, std::string, std::less<>> arguments;
    auto bind = [&](const std::vector<Variable>& formal, const Operand* actual) {
      const std::size_t given = actual == nullptr ? 0 : actual->parts.size();
      if (given != formal.size()) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("PTX line {}: the call passes {} values, \"{}\" takes {}", statement.line,
                                given, callee, formal.size()));
      }
      for (std::size_t i = 0; i < given; ++i) arguments[formal[i].name] = std::string(actual->parts[i].name);
    };
    bind(function->params, values);
    bind(function->results, results);
    paste(*function, arguments, depth + 1);
  }

  const Module& module_;
  int copies_ = 0;
  std::size_t read_ = 0;  // statements of the functions pasted so far
};

}  // namespace

Inlined inline_calls(const Module& module, const Function& entry) {
  Paster paster(module);
  paster.paste(entry, {}, 0);
  return std::move(paster.out);
}

}  // namespace flashjit::emulator
