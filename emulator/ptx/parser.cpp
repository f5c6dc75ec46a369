#include "emulator/ptx/parser.hpp"

#include <fmt/format.h>

#include <cstring>
#include <unordered_map>
#include <utility>

#include "emulator/ptx/cursor.hpp"
#include "flashjit/error.hpp"

namespace flashjit::emulator {
namespace {

// Bounds that no compiler's output comes near; they keep hostile text from eating the machine.
constexpr std::size_t kMaxText = 64u << 20;
constexpr std::size_t kMaxRegisters = 1u << 20;
constexpr u64 kMaxVariable = 1ull << 30;
constexpr int kMaxNesting = 32;

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// Bytes of a type such as ".u32" or ".f64"; 0 if it is none.
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

class Parser {
 public:
  explicit Parser(std::shared_ptr<const std::string> text) : cursor_(*text) {
    module_.text = std::move(text);
  }

  Module run() {
    while (!cursor_.at_end()) top_level();
    if (module_.version.empty()) cursor_.fail("this is not PTX: it has no .version");
    return std::move(module_);
  }

 private:
  // Names of the function's body or of a { } block inside it: inline assembly declares its own.
  struct Scope {
    std::unordered_map<std::string_view, int> registers;
    std::unordered_map<std::string_view, int> labels;
    std::unordered_map<std::string_view, std::vector<std::string_view>> target_lists;
    struct Fixup {
      int statement;
      std::string_view label;
    };
    std::vector<Fixup> fixups;
  };

  void top_level() {
    std::string_view word = cursor_.dotted();
    if (word.empty()) cursor_.fail("expected a directive");
    if (word == ".version") {
      module_.version = cursor_.dotted();
    } else if (module_.version.empty()) {
      cursor_.fail("this is not PTX: it has no .version");
    } else if (word == ".target") {
      module_.target = cursor_.dotted();
      while (cursor_.eat(',')) (void)cursor_.dotted();
    } else if (word == ".address_size") {
      if (cursor_.integer() != 64) cursor_.fail("only 64-bit PTX is read");
    } else if (word == ".visible" || word == ".weak" || word == ".extern" || word == ".common") {
    } else if (word == ".global" || word == ".const" || word == ".shared") {
      module_.variables.push_back(variable(word));
    } else if (word == ".entry" || word == ".func") {
      function(word == ".entry");
    } else if (word == ".file") {
      cursor_.skip_line();
    } else if (word == ".section") {
      cursor_.skip_past('{');
      cursor_.skip_past('}');
    } else if (word == ".pragma") {
      cursor_.skip_past(';');
    } else {
      cursor_.fail(fmt::format("\"{}\" is not known here", word));
    }
  }

  Variable::Space space_of(std::string_view word) const {
    if (word == ".global") return Variable::Space::global;
    if (word == ".const") return Variable::Space::constant;
    if (word == ".shared") return Variable::Space::shared;
    if (word == ".local") return Variable::Space::local;
    if (word == ".param") return Variable::Space::param;
    cursor_.fail(fmt::format("\"{}\" is no state space", word));
  }

  // What follows the state space: .align 16 .b8 name[64] = {…}, without the ';' or ','.
  Variable declarator(std::string_view space) {
    Variable variable;
    variable.space = space_of(space);
    u64 element = 0;
    u64 align = 0;
    for (;;) {
      std::string_view word = cursor_.dotted();
      if (word == ".align") {
        align = static_cast<u64>(cursor_.integer());
        if (align == 0 || align > 4096 || (align & (align - 1)) != 0)
          cursor_.fail("an alignment is a power of two up to 4096");
      } else if (word == ".ptr" || word == ".global" || word == ".const" || word == ".shared" ||
                 word == ".local" || word == ".attribute") {
        if (word == ".attribute") cursor_.skip_past(')');
      } else if (starts_with(word, ".")) {
        element = bytes_of_type(word);
        if (element == 0) cursor_.fail(fmt::format("\"{}\" is no type", word));
      } else if (word.empty()) {
        cursor_.fail("expected a name");
      } else {
        variable.name = word;
        break;
      }
    }
    if (element == 0) cursor_.fail("a variable needs a type");
    variable.align = std::max<u64>(align, element);
    variable.bytes = element;
    while (cursor_.eat('[')) {
      if (cursor_.peek() == ']') {
        variable.dynamic = true;
        variable.bytes = 0;
      } else {
        i64 count = cursor_.integer();
        if (count < 0 || static_cast<u64>(count) > kMaxVariable / variable.align)
          cursor_.fail("a variable is too large");
        variable.bytes *= static_cast<u64>(count);
      }
      cursor_.expect(']');
    }
    if (variable.bytes > kMaxVariable) cursor_.fail("a variable is too large");
    if (cursor_.eat('=')) initial(variable, element);
    return variable;
  }

  void initial(Variable& variable, u64 element) {
    auto one = [&] {
      char next = cursor_.peek();
      if (next != '-' && (next < '0' || next > '9'))
        cursor_.fail("an initial value that is no number is not supported");
      u64 value = cursor_.number().value;
      if (variable.value.size() + element > variable.bytes) cursor_.fail("more initial values than elements");
      for (u64 i = 0; i < element; ++i) variable.value.push_back(static_cast<u8>(value >> (8 * i)));
    };
    if (!cursor_.eat('{')) return one();
    if (cursor_.eat('}')) return;
    do one();
    while (cursor_.eat(','));
    cursor_.expect('}');
  }

  Variable variable(std::string_view space) {
    Variable made = declarator(space);
    cursor_.expect(';');
    return made;
  }

  std::vector<Variable> parameters() {
    std::vector<Variable> list;
    cursor_.expect('(');
    if (cursor_.eat(')')) return list;
    do {
      std::string_view space = cursor_.dotted();
      if (space == ".reg") space = ".param";
      list.push_back(declarator(space));
    } while (cursor_.eat(','));
    cursor_.expect(')');
    return list;
  }

  void function(bool is_entry) {
    Function made;
    made.is_entry = is_entry;
    if (!is_entry && cursor_.peek() == '(') made.results = parameters();
    made.line = cursor_.line();
    made.name = cursor_.identifier();
    if (made.name.empty()) cursor_.fail("expected a function's name");
    if (cursor_.peek() == '(') made.params = parameters();
    while (cursor_.peek() == '.') {
      std::string_view word = cursor_.dotted();
      if (word == ".noreturn" || word == ".blocksareclusters" || word == ".explicitcluster") continue;
      if (word == ".pragma") {
        cursor_.skip_past(';');
        continue;
      }
      u64 product = 1;
      do product *= static_cast<u64>(cursor_.integer());
      while (cursor_.eat(','));
      if (word == ".maxntid" || word == ".reqntid") {
        made.max_threads = static_cast<u32>(product);
      } else if (word != ".minnctapersm" && word != ".maxnreg" && word != ".reqnctapercluster" &&
                 word != ".maxclusterrank") {
        cursor_.fail(fmt::format("\"{}\" is not known here", word));
      }
    }
    if (!cursor_.eat(';')) {
      cursor_.expect('{');
      function_ = &made;
      made.is_defined = true;
      body();
      function_ = nullptr;
    }
    auto found = module_.functions.find(made.name);
    if (found != module_.functions.end() && found->second.is_defined) {
      if (made.is_defined) cursor_.fail(fmt::format("\"{}\" is defined twice", made.name));
      return;
    }
    std::string name = made.name;
    module_.functions.insert_or_assign(std::move(name), std::move(made));
  }

  void body() {
    scopes_.clear();
    scopes_.emplace_back();
    source_ = -1;
    used_bytes_ = ~0u;
    while (!scopes_.empty()) {
      char next = cursor_.peek();
      if (next == '\0') cursor_.fail("the text ends inside a function");
      if (cursor_.eat('}')) {
        close_scope();
      } else if (cursor_.eat('{')) {
        if (scopes_.size() >= kMaxNesting) cursor_.fail("blocks are nested too deeply");
        scopes_.emplace_back();
      } else if (cursor_.eat(';')) {
      } else if (next == '.') {
        directive();
      } else {
        statement();
      }
    }
  }

  void close_scope() {
    Scope scope = std::move(scopes_.back());
    scopes_.pop_back();
    for (const Scope::Fixup& fixup : scope.fixups) {
      std::vector<int>& targets = function_->statements[fixup.statement].targets;
      if (auto list = scope.target_lists.find(fixup.label); list != scope.target_lists.end()) {
        for (std::string_view name : list->second) {
          auto label = scope.labels.find(name);
          if (label == scope.labels.end()) cursor_.fail(fmt::format("label \"{}\" is nowhere", name));
          targets.push_back(label->second);
        }
      } else if (auto label = scope.labels.find(fixup.label); label != scope.labels.end()) {
        targets.push_back(label->second);
      } else if (scopes_.empty()) {
        cursor_.fail(fmt::format("label \"{}\" is nowhere", fixup.label));
      } else {
        scopes_.back().fixups.push_back(fixup);
      }
    }
  }

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
        if (starts_with(text, kUsed))
          used_bytes_ = static_cast<u32>(Cursor(text.substr(kUsed.size())).integer());
      } while (cursor_.eat(','));
      cursor_.expect(';');
    } else if (word == ".shared" || word == ".local" || word == ".param" || word == ".global" ||
               word == ".const") {
      function_->variables.push_back(variable(word));
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
        if (count < 0 || function_->registers.size() + static_cast<u64>(count) > kMaxRegisters)
          cursor_.fail("too many registers");
        for (i64 i = 0; i < count; ++i) declare(fmt::format("{}{}", name, i), cls);
      } else {
        declare(std::string(name), cls);
      }
    } while (cursor_.eat(','));
    cursor_.expect(';');
  }

  void declare(std::string name, RegisterClass cls) {
    if (function_->registers.size() >= kMaxRegisters) cursor_.fail("too many registers");
    names_.push_back(std::make_unique<std::string>(name));
    scopes_.back().registers[*names_.back()] = static_cast<int>(function_->registers.size());
    function_->registers.push_back({cls, std::move(name)});
  }

  // .loc 1 53 10, function_name $L__info_string0, inlined_at 1 222 5: the caller's own chain is that of the
  // line 222 which stood last before.
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
        auto known = last_location_.find(line);
        if (known == last_location_.end()) {
          known = last_location_.emplace(line, static_cast<int>(module_.lines.size())).first;
          module_.lines.push_back({.line = line});
        }
        made.caller = known->second;
      } else {
        cursor_.fail("expected function_name or inlined_at");
      }
    }
    source_ = static_cast<int>(module_.lines.size());
    last_location_[made.line] = source_;
    module_.lines.push_back(made);
  }

  void statement() {
    Statement made;
    made.line = cursor_.line();
    made.source = source_;
    if (cursor_.eat('@')) {
      made.guard_negated = cursor_.eat('!');
      made.guard = find_register(cursor_.identifier());
      if (made.guard < 0 || function_->registers[made.guard].cls != RegisterClass::predicate) {
        cursor_.fail("a guard must be a predicate register");
      }
      made.line = (cursor_.peek(), cursor_.line());
    }
    made.opcode = cursor_.dotted();
    if (made.opcode.empty()) cursor_.fail("expected an instruction");
    const int index = static_cast<int>(function_->statements.size());
    if (made.guard < 0 && cursor_.peek() == ':') {
      cursor_.expect(':');
      label(made.opcode, index);
      return;
    }
    made.used_bytes = std::exchange(used_bytes_, ~0u);
    if (made.opcode == "bra" || made.opcode == "bra.uni") {
      scopes_.back().fixups.push_back({index, cursor_.identifier()});
    } else if (made.opcode == "brx.idx" || made.opcode == "brx.idx.uni") {
      made.operands.push_back(operand(0));
      cursor_.expect(',');
      scopes_.back().fixups.push_back({index, cursor_.identifier()});
    } else if (cursor_.peek() != ';') {
      do made.operands.push_back(operand(0));
      while (cursor_.eat(','));
    }
    cursor_.expect(';');
    function_->statements.push_back(std::move(made));
  }

  void label(std::string_view name, int index) {
    if (cursor_.peek() != '.') {
      scopes_.back().labels[name] = index;
      return;
    }
    // `name: .branchtargets A, B;` names a list; any other directive just follows a label.
    Cursor ahead = cursor_;
    if (ahead.dotted() != ".branchtargets") {
      scopes_.back().labels[name] = index;
      return;
    }
    cursor_ = ahead;
    std::vector<std::string_view>& list = scopes_.back().target_lists[name];
    do list.push_back(cursor_.identifier());
    while (cursor_.eat(','));
    cursor_.expect(';');
  }

  [[nodiscard]] int find_register(std::string_view name) const {
    for (std::size_t i = scopes_.size(); i-- > 0;) {
      if (auto found = scopes_[i].registers.find(name); found != scopes_[i].registers.end())
        return found->second;
    }
    return -1;
  }

  Operand operand(int depth) {
    if (depth > 4) cursor_.fail("an operand is nested too deeply");
    Operand made;
    char next = cursor_.peek();
    if (next == '{' || next == '(') {
      cursor_.expect(next);
      const char close = next == '{' ? '}' : ')';
      made.kind = Operand::Kind::vector;
      if (cursor_.eat(close)) return made;
      do made.parts.push_back(operand(depth + 1));
      while (cursor_.eat(','));
      cursor_.expect(close);
      return made;
    }
    if (cursor_.eat('[')) {
      made.kind = Operand::Kind::memory;
      Operand base = operand(depth + 1);
      if (cursor_.eat('+') || cursor_.peek() == '-') base.value += cursor_.number().value;
      made.parts.push_back(std::move(base));
      while (cursor_.eat(',')) made.parts.push_back(operand(depth + 1));
      cursor_.expect(']');
      return made;
    }
    if (cursor_.eat('!')) {
      made = operand(depth + 1);
      made.negated = !made.negated;
      return made;
    }
    if (next == '-' || (next >= '0' && next <= '9')) return cursor_.number();
    std::string_view name = cursor_.identifier();
    if (name.empty()) cursor_.fail("expected an operand");
    if (name == "_") {
      made.kind = Operand::Kind::sink;
      second_of_pair(made);
      return made;
    }
    made.reg = find_register(name);
    if (made.reg >= 0) {
      made.kind = Operand::Kind::reg;
      second_of_pair(made);
      return made;
    }
    made.name = name;
    made.kind = Operand::Kind::symbol;
    if (name.front() == '%') {
      made.kind = Operand::Kind::special;
      if (cursor_.peek() == '.') {
        std::string_view part = cursor_.dotted();
        made.name =
            std::string_view(name.data(), static_cast<std::size_t>(part.data() + part.size() - name.data()));
      }
    }
    return made;
  }

  void second_of_pair(Operand& made) {
    if (!cursor_.eat('|')) return;
    std::string_view name = cursor_.identifier();
    if (name == "_") return;
    made.second = find_register(name);
    if (made.second < 0) cursor_.fail(fmt::format("\"{}\" is no register", name));
  }

  Cursor cursor_;
  Module module_;
  Function* function_ = nullptr;
  std::vector<Scope> scopes_;
  std::vector<std::unique_ptr<std::string>> names_;  // of registers, which scopes refer to
  std::unordered_map<int, int> last_location_;       // source line to its latest index in Module::lines
  int source_ = -1;
  u32 used_bytes_ = ~0u;
};

}  // namespace

Module parse_ptx(std::string text) {
  if (text.size() > kMaxText) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("PTX of {} bytes; the emulator reads up to {}", text.size(), kMaxText));
  }
  return Parser(std::make_shared<const std::string>(std::move(text))).run();
}

}  // namespace flashjit::emulator
