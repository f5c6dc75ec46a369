#include "tests/mutation/sync_mutants.hpp"

#include <algorithm>
#include <map>
#include <regex>
#include <string_view>

#include "emulator/ptx/parser.hpp"

namespace flashjit::test {
namespace {

// A bra to a label that inline assembly made is a wait loop's: the compiler's own labels begin with a dollar.
const std::regex& synchronising() {
  static const std::regex expression(
      R"(^(@!?%?\w+\s+)?((bar|barrier|mbarrier|fence|membar|griddepcontrol|setmaxnreg)\..*)"
      R"(|cp\.async\.(bulk\.)?(commit_group|wait_group|wait_all|mbarrier).*)"
      R"(|wgmma\.(fence|commit_group|wait_group).*)"
      R"(|bra(\.uni)?\s+[A-Za-z_]\w*)$)");
  return expression;
}

std::string without_names(const std::string& text) {
  static const std::regex names(R"(%\w+)"), numbers(R"((\s|\[|\+)-?\d+)"), blanks(R"(\s+)");
  std::string plain = std::regex_replace(text, names, "%");
  plain = std::regex_replace(plain, numbers, "$1#");
  return std::regex_replace(plain, blanks, " ");
}

std::string_view line_of(std::string_view text, int line) {
  for (int k = 1; k < line; ++k) text = text.substr(std::min(text.find('\n'), text.size() - 1) + 1);
  text = text.substr(0, text.find('\n'));
  return text.substr(std::min(text.find_first_not_of(" \t"), text.size()));
}

// Where the statements of a line begin and end, without the semicolon.
struct Piece {
  std::size_t begin = 0, length = 0;
};
std::vector<Piece> pieces_of(std::string_view line) {
  std::vector<Piece> pieces;
  line = line.substr(0, line.find("//"));
  std::size_t begin = 0;
  for (std::size_t at = 0; at < line.size(); ++at) {
    const bool ends = line[at] == ';';
    // Labels and the braces of a block; those of an operand stand inside brackets or after a comma.
    const bool opens =
        line[at] == ':' && (at + 1 == line.size() || line[at + 1] != ':') && (at == 0 || line[at - 1] != ':');
    const bool block = (line[at] == '{' || line[at] == '}') &&
                       line.substr(begin, at - begin).find_first_not_of(" \t") == std::string_view::npos;
    if (ends) {
      const std::size_t first = line.find_first_not_of(" \t", begin);
      if (first < at) pieces.push_back({first, at - first});
    }
    if (ends || opens || block) begin = at + 1;
  }
  return pieces;
}

}  // namespace

std::vector<SyncMutant> sync_mutants(const std::string& ptx, const KernelSource& source,
                                     const TemplateSet& templates) {
  const emulator::Module module = emulator::parse_ptx(ptx);
  std::map<int, int> source_of;  // PTX line to index into module.lines
  for (const auto& [name, function] : module.functions) {
    for (const emulator::Statement& statement : function.statements)
      source_of.try_emplace(statement.line, statement.source);
  }
  std::vector<SyncMutant> mutants;
  int line = 0;
  for (std::size_t start = 0; start < ptx.size();) {
    ++line;
    const std::size_t end = std::min(ptx.find('\n', start), ptx.size());
    const std::string text = ptx.substr(start, end - start);
    for (const Piece& piece : pieces_of(text)) {
      const std::string statement = text.substr(piece.begin, piece.length);
      if (!std::regex_match(statement, synchronising())) continue;
      SyncMutant& mutant = mutants.emplace_back();
      mutant = {.entry = source.entry,
                .begin = start + piece.begin,
                .length = piece.length,
                .line = line,
                .statement = without_names(statement)};
      const auto known = source_of.find(line);
      for (int at = known == source_of.end() ? -1 : known->second; at >= 0;
           at = module.lines[static_cast<std::size_t>(at)].caller) {
        const int rendered = module.lines[static_cast<std::size_t>(at)].line;
        if (rendered < 1 || static_cast<std::size_t>(rendered) > source.origins.size()) continue;
        const LineOrigin& origin = source.origins[static_cast<std::size_t>(rendered) - 1];
        mutant.file = origin.file;
        mutant.template_line = origin.line;
        if (!mutant.file.empty() && !mutant.file.starts_with("ptx/")) break;
      }
      if (const auto found = templates.find(mutant.file); found != templates.end())
        mutant.code = line_of(found->second, mutant.template_line);
    }
    start = end + 1;
  }
  return mutants;
}

std::string without(const std::string& ptx, const SyncMutant& mutant) {
  std::string changed = ptx;
  std::fill_n(changed.begin() + static_cast<std::ptrdiff_t>(mutant.begin), mutant.length, ' ');
  return changed;
}

}  // namespace flashjit::test
