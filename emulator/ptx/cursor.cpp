#include "emulator/ptx/cursor.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "flashjit/error.hpp"

namespace flashjit::emulator {
namespace {

constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
constexpr bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
constexpr bool in_name(char c) {
  return is_letter(c) || is_digit(c) || c == '_' || c == '$' || c == '%';
}

int digit_of(char c, int base) {
  int value = is_digit(c)            ? c - '0'
              : c >= 'a' && c <= 'f' ? c - 'a' + 10
              : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                     : 99;
  return value < base ? value : -1;
}

}  // namespace

void Cursor::blanks() {
  while (position_ < text_.size()) {
    char c = text_[position_];
    if (c == '\n') {
      ++line_;
      ++position_;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
      ++position_;
    } else if (c == '/' && at(1) == '/') {
      while (position_ < text_.size() && text_[position_] != '\n') ++position_;
    } else if (c == '/' && at(1) == '*') {
      std::size_t end = text_.find("*/", position_ + 2);
      if (end == std::string_view::npos) fail("a comment is not closed");
      line_ += static_cast<int>(std::count(text_.begin() + position_, text_.begin() + end, '\n'));
      position_ = end + 2;
    } else {
      return;
    }
  }
}

char Cursor::peek() {
  blanks();
  return at(0);
}

bool Cursor::eat(char c) {
  if (peek() != c || position_ >= text_.size()) return false;
  ++position_;
  return true;
}

void Cursor::expect(char c) {
  if (!eat(c)) fail(fmt::format("expected '{}'", c));
}

std::string_view Cursor::identifier() {
  blanks();
  std::size_t start = position_;
  while (in_name(at(0))) ++position_;
  return text_.substr(start, position_ - start);
}

std::string_view Cursor::dotted() {
  blanks();
  std::size_t start = position_;
  while (in_name(at(0)) || at(0) == '.' || (at(0) == ':' && at(1) == ':')) position_ += at(0) == ':' ? 2 : 1;
  return text_.substr(start, position_ - start);
}

std::string_view Cursor::quoted() {
  expect('"');
  std::size_t start = position_;
  while (at(0) != '"') {
    if (at(0) == '\0' || at(0) == '\n') fail("a string is not closed");
    ++position_;
  }
  return text_.substr(start, position_++ - start);
}

Operand Cursor::number() {
  Operand operand;
  operand.kind = Operand::Kind::immediate;
  bool negative = eat('-');
  blanks();
  int base = 10;
  if (at(0) == '0') {
    char kind = at(1);
    if (kind == 'f' || kind == 'F' || kind == 'd' || kind == 'D') {
      const int digits = kind == 'f' || kind == 'F' ? 8 : 16;
      operand.float_bytes = static_cast<u8>(digits / 2);
      position_ += 2;
      for (int i = 0; i < digits; ++i, ++position_) {
        int value = digit_of(at(0), 16);
        if (value < 0) fail(fmt::format("a floating-point literal needs {} hexadecimal digits", digits));
        operand.value = operand.value << 4 | static_cast<u64>(value);
      }
      if (negative) operand.value ^= 1ull << (4 * digits - 1);
      return operand;
    }
    base = kind == 'x' || kind == 'X' ? 16 : kind == 'b' || kind == 'B' ? 2 : is_digit(kind) ? 8 : 10;
    if (base == 16 || base == 2) position_ += 2;
  }
  std::size_t start = position_;
  for (int value; (value = digit_of(at(0), base)) >= 0; ++position_) {
    operand.value = operand.value * static_cast<u64>(base) + static_cast<u64>(value);
  }
  if (position_ == start) fail("expected a number");
  if (at(0) == 'U') ++position_;
  if (negative) operand.value = 0 - operand.value;
  return operand;
}

i64 Cursor::integer() {
  return static_cast<i64>(number().value);
}

void Cursor::skip_past(char c) {
  for (;;) {
    char next = peek();
    if (next == '\0' && position_ >= text_.size()) fail(fmt::format("expected '{}' before the end", c));
    if (next == '"') {
      (void)quoted();
      continue;
    }
    ++position_;
    if (next == c) return;
  }
}

void Cursor::skip_line() {
  while (position_ < text_.size() && text_[position_] != '\n') ++position_;
}

void Cursor::fail(const std::string& what) const {
  std::string line(text_of_line(text_, line_).substr(0, 160));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c < ' ' || c > '~'; }, '?');  // perhaps this is a cubin
  throw Error(ErrorCode::invalid_argument, fmt::format("PTX line {}: {}, in \"{}\"", line_, what, line),
              "the emulator reads PTX as NVRTC 12 and 13 write it");
}

std::string_view text_of_line(std::string_view text, int line) {
  std::size_t start = 0;
  for (int i = 1; i < line; ++i) {
    std::size_t end = text.find('\n', start);
    if (end == std::string_view::npos) return {};
    start = end + 1;
  }
  std::string_view found = text.substr(start, text.find('\n', start) - start);
  const char* blank = " \t\r";
  std::size_t first = found.find_first_not_of(blank);
  if (first == std::string_view::npos) return {};
  return found.substr(first, found.find_last_not_of(blank) - first + 1);
}

std::string_view Module::line_text(int line) const {
  return text_of_line(*text, line);
}

}  // namespace flashjit::emulator
