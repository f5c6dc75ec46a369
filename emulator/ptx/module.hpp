// A PTX module as written: functions, registers and statements, before anything is decoded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace flashjit::emulator {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;
using i64 = std::int64_t;

enum class RegisterClass : u8 { predicate, bits16, bits32, bits64 };

// Far above any compiler's output. Keeps hostile text from exhausting the machine.
inline constexpr std::size_t kMaxRegisters = 1u << 20;

struct Register {
  RegisterClass cls = RegisterClass::bits32;
  std::string name;
};

// One operand. Memory operands and vectors have their contents in `parts`.
struct Operand {
  enum class Kind : u8 {
    reg,        // %r1; `second` is set for a pair such as %r1|%p1 or _|%p1
    immediate,  // `value`; the bits of a float if float_bytes is not 0
    symbol,     // a variable, parameter or function; `value` is the offset added to it
    special,    // %tid.x
    memory,     // [base+offset]: parts[0] is the base with the offset in its `value`; more parts: coordinates
    vector,     // {a, b}, or the parenthesised list of a call
    sink,       // _
  };
  Kind kind = Kind::reg;
  bool negated = false;  // !%p1
  u8 float_bytes = 0;    // 4 for 0f…, 8 for 0d…
  int reg = -1;
  int second = -1;
  u64 value = 0;
  std::string_view name;
  std::vector<Operand> parts;
};

// A place in the CUDA source, and the place that it was inlined into.
struct SourceLine {
  int line = 0;
  int caller = -1;  // index into Module::lines, or -1
};

struct Statement {
  std::string_view opcode;  // with every modifier: "add.rn.f32"
  std::vector<Operand> operands;
  int guard = -1;  // register of @%p
  bool guard_negated = false;
  int line = 0;              // of the PTX text, 1-based
  int source = -1;           // index into Module::lines
  u32 used_bytes = ~0u;      // of a vector load: .pragma "used_bytes_mask …"
  std::vector<int> targets;  // of a branch: indices of statements (== statements.size(): the end)
};

// A variable in one of the state spaces that a kernel addresses by name.
struct Variable {
  enum class Space : u8 { global, constant, shared, local, param };
  Space space = Space::global;
  std::string name;
  u64 align = 1;
  u64 bytes = 0;
  bool dynamic = false;   // .extern .shared []: the launch gives its size
  std::vector<u8> value;  // initial bytes of .global and .const; any further bytes are zero
};

struct Function {
  std::string name;
  bool is_entry = false;
  bool is_defined = false;  // has a body
  int line = 0;
  std::vector<Variable> results;  // of a .func
  std::vector<Variable> params;
  std::vector<Variable> variables;         // .shared, .local and .param of the body
  std::deque<std::string> variable_names;  // operands refer to these
  std::vector<Register> registers;
  std::vector<Statement> statements;
  u32 max_threads = 0;  // .maxntid or .reqntid, 0 if the kernel has neither
  u32 min_ctas = 1;     // .minnctapersm: how many CTAs the registers of a multiprocessor must allow
  std::array<u32, 3> required_block{},
      required_cluster{};  // .reqntid, .reqnctapercluster; zeros if it has none
};

struct Module {
  std::shared_ptr<const std::string> text;  // the text that the string_views refer to
  std::string version;
  std::string target;
  std::vector<Variable> variables;  // of the module: .global, .const, .shared
  std::vector<SourceLine> lines;
  std::map<std::string, Function, std::less<>> functions;

  [[nodiscard]] const Function* find(std::string_view name) const {
    auto found = functions.find(name);
    return found == functions.end() ? nullptr : &found->second;
  }
  // The text of a 1-based line, without whitespace at its ends.
  [[nodiscard]] std::string_view line_text(int line) const;
};

}  // namespace flashjit::emulator
