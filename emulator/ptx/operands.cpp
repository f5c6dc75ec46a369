#include "emulator/ptx/operands.hpp"

#include <fmt/format.h>

#include <utility>

namespace flashjit::emulator {
namespace {

void second_of_pair(Cursor& cursor, const Scopes& scopes, Operand& made) {
  if (!cursor.eat('|')) return;
  std::string_view name = cursor.identifier();
  if (name == "_") return;
  made.second = scopes.find_register(name);
  if (made.second < 0) cursor.fail(fmt::format("\"{}\" is no register", name));
}

Operand operand(Cursor& cursor, const Scopes& scopes, int depth) {
  if (depth > 4) cursor.fail("an operand is nested too deeply");
  Operand made;
  char next = cursor.peek();
  if (next == '{' || next == '(') {
    cursor.expect(next);
    const char close = next == '{' ? '}' : ')';
    made.kind = Operand::Kind::vector;
    if (cursor.eat(close)) return made;
    do made.parts.push_back(operand(cursor, scopes, depth + 1));
    while (cursor.eat(','));
    cursor.expect(close);
    return made;
  }
  if (cursor.eat('[')) {
    made.kind = Operand::Kind::memory;
    Operand base = operand(cursor, scopes, depth + 1);
    if (cursor.eat('+') || cursor.peek() == '-') base.value += cursor.number().value;
    made.parts.push_back(std::move(base));
    while (cursor.eat(',')) made.parts.push_back(operand(cursor, scopes, depth + 1));
    cursor.expect(']');
    return made;
  }
  if (cursor.eat('!')) {
    made = operand(cursor, scopes, depth + 1);
    made.negated = !made.negated;
    return made;
  }
  if (next == '-' || (next >= '0' && next <= '9')) return cursor.number();
  std::string_view name = cursor.identifier();
  if (name.empty()) cursor.fail("expected an operand");
  if (name == "_") {
    made.kind = Operand::Kind::sink;
    second_of_pair(cursor, scopes, made);
    return made;
  }
  made.reg = scopes.find_register(name);
  if (made.reg >= 0) {
    made.kind = Operand::Kind::reg;
    second_of_pair(cursor, scopes, made);
    return made;
  }
  made.name = scopes.find_variable(name);
  made.kind = Operand::Kind::symbol;
  if (name.front() == '%') {
    made.kind = Operand::Kind::special;
    if (cursor.peek() == '.') {
      std::string_view part = cursor.dotted();
      made.name =
          std::string_view(name.data(), static_cast<std::size_t>(part.data() + part.size() - name.data()));
    }
  }
  return made;
}

}  // namespace

Operand parse_operand(Cursor& cursor, const Scopes& scopes) {
  return operand(cursor, scopes, 0);
}

}  // namespace flashjit::emulator
