#include "emulator/ptx/parser.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "emulator/ptx/body.hpp"
#include "emulator/ptx/cursor.hpp"
#include "emulator/ptx/variables.hpp"
#include "flashjit/error.hpp"

namespace flashjit::emulator {
namespace {

constexpr std::size_t kMaxText = 64u << 20;  // far above any compiler's output

class Parser {
 public:
  explicit Parser(std::shared_ptr<const std::string> text) : cursor_(*text) {
    module_.text = std::move(text);
  }

  Module run() {
    version();
    while (!cursor_.at_end()) top_level();
    return std::move(module_);
  }

 private:
  // "PTX module-level directives": every module starts with .version.
  void version() {
    if (cursor_.dotted() != ".version") cursor_.fail("this is not PTX, which begins with .version");
    const std::string_view version = module_.version = cursor_.dotted();
    if (version.size() < 2 || version[1] != '.' || version[0] < '6' || version[0] > '9')
      cursor_.fail(fmt::format("PTX version {}, may be 6.0 to 9.x", version));
  }

  void top_level() {
    std::string_view word = cursor_.dotted();
    if (word.empty()) cursor_.fail("expected a directive");
    if (word == ".target") {
      module_.target = cursor_.dotted();
      while (cursor_.eat(',')) (void)cursor_.dotted();
    } else if (word == ".address_size") {
      if (cursor_.integer() != 64) cursor_.fail("only 64-bit PTX is read");
    } else if (word == ".visible" || word == ".weak" || word == ".extern" || word == ".common") {
    } else if (word == ".global" || word == ".const" || word == ".shared") {
      module_.variables.push_back(parse_variable(cursor_, word));
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

  void function(bool is_entry) {
    Function made;
    made.is_entry = is_entry;
    if (!is_entry && cursor_.peek() == '(') made.results = parse_parameters(cursor_);
    made.line = cursor_.line();
    made.name = cursor_.identifier();
    if (made.name.empty()) cursor_.fail("expected a function's name");
    if (cursor_.peek() == '(') made.params = parse_parameters(cursor_);
    while (cursor_.peek() == '.') {
      std::string_view word = cursor_.dotted();
      if (word == ".noreturn" || word == ".blocksareclusters" || word == ".explicitcluster") continue;
      if (word == ".pragma") {
        cursor_.skip_past(';');
        continue;
      }
      const std::array<u32, 3> extent = dimensions();
      const u32 product = extent[0] * extent[1] * extent[2];
      if (word == ".maxntid") {
        made.max_threads = product;
      } else if (word == ".reqntid") {
        made.max_threads = product;
        made.required_block = extent;
      } else if (word == ".reqnctapercluster") {
        made.required_cluster = extent;
      } else if (word == ".minnctapersm") {
        made.min_ctas = product;
      } else if (word != ".maxnreg" && word != ".maxclusterrank") {
        cursor_.fail(fmt::format("\"{}\" is not known here", word));
      }
    }
    if (!cursor_.eat(';')) {
      cursor_.expect('{');
      made.is_defined = true;
      parse_body(cursor_, module_, last_line_, made);
    }
    auto found = module_.functions.find(made.name);
    if (found != module_.functions.end() && found->second.is_defined) {
      if (made.is_defined) cursor_.fail(fmt::format("\"{}\" is defined twice", made.name));
      return;
    }
    std::string name = made.name;
    module_.functions.insert_or_assign(std::move(name), std::move(made));
  }

  // Up to three numbers, whose product fits in 32 bits; those that are missing are 1.
  std::array<u32, 3> dimensions() {
    std::array<u32, 3> extent{1, 1, 1};
    u64 most = 0xffffffff;  // of the next number
    std::size_t count = 0;
    do {
      const auto value = static_cast<u64>(cursor_.integer());
      if (count == extent.size() || value == 0 || value > most)
        cursor_.fail("one to three numbers are expected, from 1 on, and their product in 32 bits");
      most /= value;
      extent[count++] = static_cast<u32>(value);
    } while (cursor_.eat(','));
    return extent;
  }

  Cursor cursor_;
  Module module_;
  LastLines last_line_;
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
