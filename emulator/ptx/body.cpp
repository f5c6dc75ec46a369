#include "emulator/ptx/body.hpp"

#include <fmt/format.h>

#include <utility>

#include "emulator/ptx/operands.hpp"
#include "emulator/ptx/scopes.hpp"
#include "emulator/ptx/variables.hpp"

namespace flashjit::emulator {
namespace {

constexpr int kMaxNesting = 32;  // far above any compiler's output

class Body {
 public:
  Body(Cursor& cursor, Module& module, LastLines& last_line, Function& function)
      : cursor_(cursor), module_(module), last_line_(last_line), function_(function), scopes_(function) {}

  void run() {
    scopes_.open();
    while (scopes_.depth() != 0) {
      char next = cursor_.peek();
      if (next == '\0') cursor_.fail("the text ends inside a function");
      if (cursor_.eat('}')) {
        scopes_.close(cursor_);
      } else if (cursor_.eat('{')) {
        if (scopes_.depth() >= kMaxNesting) cursor_.fail("blocks are nested too deeply");
        scopes_.open();
      } else if (cursor_.eat(';')) {
      } else if (next == '.') {
        directive();
      } else {
        statement();
      }
    }
  }

 private:
  void directive() {
    std::string_view word = cursor_.dotted();
    if (word == ".reg") {
      registers();
    } else if (word == ".loc") {
      location();
    } else if (word == ".pragma") {
      do {
        constexpr std::string_view kUsed = "used_bytes_mask ";
        std::string_view text = cursor_.quoted();
        if (text.starts_with(kUsed))
          used_bytes_ = static_cast<u32>(Cursor(text.substr(kUsed.size())).integer());
      } while (cursor_.eat(','));
      cursor_.expect(';');
    } else if (word == ".shared" || word == ".local" || word == ".param" || word == ".global" ||
               word == ".const") {
      Variable made = parse_variable(cursor_, word);
      made.name = scopes_.declare_variable(made.name);
      function_.variables.push_back(std::move(made));
    } else {
      cursor_.fail(fmt::format("\"{}\" is not known here", word));
    }
  }

  void registers() {
    std::string_view type = cursor_.dotted();
    u64 bytes = bytes_of_type(type);
    if (bytes == 0 || bytes == 16) cursor_.fail(fmt::format("registers of type \"{}\" are not known", type));
    RegisterClass cls = type == ".pred" ? RegisterClass::predicate
                        : bytes <= 2    ? RegisterClass::bits16
                        : bytes == 4    ? RegisterClass::bits32
                                        : RegisterClass::bits64;
    do {
      std::string_view name = cursor_.identifier();
      if (name.empty()) cursor_.fail("expected a register's name");
      if (cursor_.eat('<')) {
        i64 count = cursor_.integer();
        cursor_.expect('>');
        if (count < 0 || function_.registers.size() + static_cast<u64>(count) > kMaxRegisters)
          cursor_.fail("too many registers");
        for (i64 i = 0; i < count; ++i) scopes_.declare(fmt::format("{}{}", name, i), cls);
      } else {
        if (function_.registers.size() >= kMaxRegisters) cursor_.fail("too many registers");
        scopes_.declare(std::string(name), cls);
      }
    } while (cursor_.eat(','));
    cursor_.expect(';');
  }

  // .loc 1 53 10, function_name $L__info_string0, inlined_at 1 222 5: the caller of this line is the latest
  // line 222, with that line's own chain of callers.
  void location() {
    (void)cursor_.integer();
    SourceLine made{.line = static_cast<int>(cursor_.integer())};
    (void)cursor_.integer();
    while (cursor_.eat(',')) {
      std::string_view word = cursor_.identifier();
      if (word == "function_name") {
        (void)cursor_.identifier();
        if (cursor_.eat('+')) (void)cursor_.integer();
      } else if (word == "inlined_at") {
        (void)cursor_.integer();
        int line = static_cast<int>(cursor_.integer());
        (void)cursor_.integer();
        auto known = last_line_.find(line);
        if (known == last_line_.end()) {
          known = last_line_.emplace(line, static_cast<int>(module_.lines.size())).first;
          module_.lines.push_back({.line = line});
        }
        made.caller = known->second;
      } else {
        cursor_.fail("expected function_name or inlined_at");
      }
    }
    source_ = static_cast<int>(module_.lines.size());
    last_line_[made.line] = source_;
    module_.lines.push_back(made);
  }

  void statement() {
    Statement made;
    made.line = cursor_.line();
    made.source = source_;
    if (cursor_.eat('@')) {
      made.guard_negated = cursor_.eat('!');
      made.guard = scopes_.find_register(cursor_.identifier());
      if (made.guard < 0 || function_.registers[made.guard].cls != RegisterClass::predicate) {
        cursor_.fail("a guard must be a predicate register");
      }
      made.line = (cursor_.peek(), cursor_.line());
    }
    made.opcode = cursor_.dotted();
    if (made.opcode.empty()) cursor_.fail("expected an instruction");
    const int index = static_cast<int>(function_.statements.size());
    if (made.guard < 0 && cursor_.peek() == ':') {
      cursor_.expect(':');
      label(made.opcode, index);
      return;
    }
    made.used_bytes = std::exchange(used_bytes_, ~0u);
    if (made.opcode == "bra" || made.opcode == "bra.uni") {
      scopes_.branch(index, cursor_.identifier());
    } else if (made.opcode == "brx.idx" || made.opcode == "brx.idx.uni") {
      made.operands.push_back(parse_operand(cursor_, scopes_));
      cursor_.expect(',');
      scopes_.branch(index, cursor_.identifier());
    } else if (cursor_.peek() != ';') {
      do made.operands.push_back(parse_operand(cursor_, scopes_));
      while (cursor_.eat(','));
    }
    cursor_.expect(';');
    function_.statements.push_back(std::move(made));
  }

  void label(std::string_view name, int index) {
    if (cursor_.peek() != '.') {
      scopes_.label(name, index);
      return;
    }
    // `name: .branchtargets A, B;` names a list. Any other directive just follows a label.
    Cursor ahead = cursor_;
    if (ahead.dotted() != ".branchtargets") {
      scopes_.label(name, index);
      return;
    }
    cursor_ = ahead;
    std::vector<std::string_view>& list = scopes_.target_list(name);
    do list.push_back(cursor_.identifier());
    while (cursor_.eat(','));
    cursor_.expect(';');
  }

  Cursor& cursor_;
  Module& module_;
  LastLines& last_line_;
  Function& function_;
  Scopes scopes_;
  int source_ = -1;
  u32 used_bytes_ = ~0u;
};

}  // namespace

void parse_body(Cursor& cursor, Module& module, LastLines& last_line, Function& function) {
  Body(cursor, module, last_line, function).run();
}

}  // namespace flashjit::emulator
