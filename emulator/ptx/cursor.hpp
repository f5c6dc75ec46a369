// Walks over PTX text: whitespace, comments, words, numbers; its errors quote the line.
#pragma once

#include <string>
#include <string_view>

#include "emulator/ptx/module.hpp"

namespace flashjit::emulator {

class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  [[nodiscard]] int line() const { return line_; }
  [[nodiscard]] bool at_end() { return peek() == '\0'; }

  char peek();       // the next character that is not whitespace; 0 at the end
  bool eat(char c);  // takes the next character if it is c
  void expect(char c);
  std::string_view identifier();  // letters, digits, _ $ %; may be empty
  std::string_view dotted();      // an opcode or directive: identifier characters, '.' and "::"
  std::string_view quoted();      // "…", without the quotes
  i64 integer();
  Operand number();        // an immediate: decimal, hexadecimal, octal, binary, 0f…, 0d…, negative
  void skip_past(char c);  // drops everything up to and including the next c
  void skip_line();
  [[noreturn]] void fail(const std::string& what) const;

 private:
  void blanks();
  [[nodiscard]] char at(std::size_t offset) const {
    return position_ + offset < text_.size() ? text_[position_ + offset] : '\0';
  }

  std::string_view text_;
  std::size_t position_ = 0;
  int line_ = 1;
};

// The text of a 1-based line, without whitespace at its ends.
std::string_view text_of_line(std::string_view text, int line);

}  // namespace flashjit::emulator
