// Matches opcodes against the table's patterns.
#include "emulator/decode/opcodes.hpp"

#include <unordered_map>

namespace flashjit::emulator {
namespace {

// Splits off the part before the first '.'; patterns have no '.' inside parentheses.
std::string_view take(std::string_view& rest) {
  std::size_t dot = rest.find('.');
  std::string_view first = rest.substr(0, dot);
  rest = dot == std::string_view::npos ? std::string_view() : rest.substr(dot + 1);
  return first;
}

// '#' stands for a number: "m64n#k16".
bool is_name(std::string_view pattern, std::string_view name) {
  while (!pattern.empty() && !name.empty()) {
    if (pattern.front() == '#') {
      const std::size_t digits = name.find_first_not_of("0123456789");
      if (digits == 0) return false;
      name = digits == std::string_view::npos ? std::string_view() : name.substr(digits);
    } else if (pattern.front() == name.front()) {
      name.remove_prefix(1);
    } else {
      return false;
    }
    pattern.remove_prefix(1);
  }
  return pattern.empty() && name.empty();
}

bool is_one_of(std::string_view names, std::string_view name) {
  for (;;) {
    std::size_t bar = names.find('|');
    if (is_name(names.substr(0, bar), name)) return true;
    if (bar == std::string_view::npos) return false;
    names = names.substr(bar + 1);
  }
}

bool match_from(std::string_view pattern, bool pattern_done, std::string_view opcode, bool opcode_done,
                Match& match, std::size_t index) {
  if (pattern_done) return opcode_done;
  std::string_view rest = pattern;
  std::string_view element = take(rest);
  const bool last = rest.empty();
  const bool optional = !element.empty() && element.back() == '?';
  if (optional) element.remove_suffix(1);
  if (!element.empty() && element.front() == '(') element = element.substr(1, element.size() - 2);
  if (!opcode_done) {
    std::string_view remaining = opcode;
    std::string_view word = take(remaining);
    if (is_one_of(element, word)) {
      if (index < match.size()) match[index] = word;
      const bool opcode_ends = word.size() == opcode.size();
      if (match_from(rest, last, remaining, opcode_ends, match, index + 1)) return true;
    }
  }
  if (!optional) return false;
  if (index < match.size()) match[index] = {};
  return match_from(rest, last, opcode, opcode_done, match, index + 1);
}

using Index = std::unordered_map<std::string_view, std::vector<const Opcode*>>;

Index make_index() {
  Index index;
  for (std::span<const Opcode> table : opcode_tables()) {
    for (const Opcode& row : table) {
      std::string_view name = row.pattern;
      name = name.substr(0, name.find('.'));
      if (name.front() != '(') {
        index[name].push_back(&row);
        continue;
      }
      name = name.substr(1, name.size() - 2);
      for (;;) {
        std::size_t bar = name.find('|');
        index[name.substr(0, bar)].push_back(&row);
        if (bar == std::string_view::npos) break;
        name = name.substr(bar + 1);
      }
    }
  }
  return index;
}

constexpr const char* kClassNames[kOpClasses] = {"integer",    "fp32",        "special", "packed", "convert",
                                                 "tensor",     "matrix move", "shared",  "global", "param",
                                                 "async copy", "shuffle",     "barrier", "control"};

}  // namespace

const char* to_string(OpClass cls) {
  return kClassNames[static_cast<int>(cls)];
}

bool matches(std::string_view pattern, std::string_view opcode, Match& match) {
  return match_from(pattern, false, opcode, false, match, 0);
}

const Opcode* find_opcode(std::string_view opcode, Match& match) {
  static const Index index = make_index();
  auto found = index.find(opcode.substr(0, opcode.find('.')));
  if (found == index.end()) return nullptr;
  for (const Opcode* row : found->second) {
    if (matches(row->pattern, opcode, match)) return row;
  }
  return nullptr;
}

}  // namespace flashjit::emulator
