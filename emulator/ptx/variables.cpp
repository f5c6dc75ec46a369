#include "emulator/ptx/variables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace flashjit::emulator {
namespace {

constexpr u64 kMaxVariable = 1ull << 30;  // far above any compiler's output

Variable::Space space_of(const Cursor& cursor, std::string_view word) {
  if (word == ".global") return Variable::Space::global;
  if (word == ".const") return Variable::Space::constant;
  if (word == ".shared") return Variable::Space::shared;
  if (word == ".local") return Variable::Space::local;
  if (word == ".param") return Variable::Space::param;
  cursor.fail(fmt::format("\"{}\" is no state space", word));
}

void initial(Cursor& cursor, Variable& variable, u64 element) {
  auto one = [&] {
    char next = cursor.peek();
    if (next != '-' && (next < '0' || next > '9'))
      cursor.fail("an initial value that is no number is not supported");
    u64 value = cursor.number().value;
    if (variable.value.size() + element > variable.bytes) cursor.fail("more initial values than elements");
    for (u64 i = 0; i < element; ++i)
      variable.value.push_back(i < sizeof value ? static_cast<u8>(value >> (8 * i)) : u8{0});
  };
  if (!cursor.eat('{')) return one();
  if (cursor.eat('}')) return;
  do one();
  while (cursor.eat(','));
  cursor.expect('}');
}

// The part after the state space: .align 16 .b8 name[64] = {…}, without the ';' or ','.
Variable declarator(Cursor& cursor, std::string_view space) {
  Variable variable;
  variable.space = space_of(cursor, space);
  u64 element = 0;
  u64 align = 0;
  for (;;) {
    std::string_view word = cursor.dotted();
    if (word == ".align") {
      align = static_cast<u64>(cursor.integer());
      if (align == 0 || align > 4096 || (align & (align - 1)) != 0)
        cursor.fail("an alignment is a power of two up to 4096");
    } else if (word == ".ptr" || word == ".global" || word == ".const" || word == ".shared" ||
               word == ".local" || word == ".attribute") {
      if (word == ".attribute") cursor.skip_past(')');
    } else if (word.starts_with('.')) {
      element = bytes_of_type(word);
      if (element == 0) cursor.fail(fmt::format("\"{}\" is no type", word));
    } else if (word.empty()) {
      cursor.fail("expected a name");
    } else {
      variable.name = word;
      break;
    }
  }
  if (element == 0) cursor.fail("a variable needs a type");
  variable.align = std::max<u64>(align, element);
  variable.bytes = element;
  while (cursor.eat('[')) {
    if (cursor.peek() == ']') {
      variable.dynamic = true;
      variable.bytes = 0;
    } else {
      i64 count = cursor.integer();
      if (count < 0 || static_cast<u64>(count) > kMaxVariable / variable.align)
        cursor.fail("a variable is too large");
      variable.bytes *= static_cast<u64>(count);
    }
    cursor.expect(']');
  }
  if (variable.bytes > kMaxVariable) cursor.fail("a variable is too large");
  if (cursor.eat('=')) initial(cursor, variable, element);
  return variable;
}

}  // namespace

u64 bytes_of_type(std::string_view type) {
  static constexpr std::pair<std::string_view, u64> kTypes[] = {
      {".b8", 1},   {".u8", 1},  {".s8", 1},  {".b16", 2}, {".u16", 2},  {".s16", 2},   {".f16", 2},
      {".bf16", 2}, {".b32", 4}, {".u32", 4}, {".s32", 4}, {".f32", 4},  {".f16x2", 4}, {".bf16x2", 4},
      {".b64", 8},  {".u64", 8}, {".s64", 8}, {".f64", 8}, {".pred", 1}, {".b128", 16}};
  for (const auto& [name, bytes] : kTypes) {
    if (name == type) return bytes;
  }
  return 0;
}

Variable parse_variable(Cursor& cursor, std::string_view space) {
  Variable made = declarator(cursor, space);
  cursor.expect(';');
  return made;
}

std::vector<Variable> parse_parameters(Cursor& cursor) {
  std::vector<Variable> list;
  cursor.expect('(');
  if (cursor.eat(')')) return list;
  do {
    std::string_view space = cursor.dotted();
    if (space == ".reg") space = ".param";
    list.push_back(declarator(cursor, space));
  } while (cursor.eat(','));
  cursor.expect(')');
  return list;
}

}  // namespace flashjit::emulator
