// docs/cli.md names every verb and every flag of the command, and no flag that it does not have; and each
// flag of one verb beside that verb.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/command.hpp"

namespace {

std::string help_of(const std::string& verb) {
  return flashjit::test::Command().run(verb + " --help").out;
}

std::set<std::string> matches(const std::string& text, const std::regex& pattern) {
  std::set<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it)
    found.insert((*it)[1]);
  return found;
}

// The names under "Subcommands:", each at the start of an indented line.
std::set<std::string> verbs_of(const std::string& help) {
  const auto at = help.find("Subcommands:");
  if (at == std::string::npos) return {};
  return matches(help.substr(at), std::regex("\n  ([a-z]+) "));
}

std::string read_page() {
  std::ifstream file(FLASHJIT_ROOT "/docs/cli.md");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

const std::regex kFlag("(--[a-z][a-z-]+)");

// A row of the table under "Flags of one verb"; one with an empty first cell is of the verbs above it.
struct Row {
  std::set<std::string> verbs, flags;
  std::string meaning;
};
std::vector<Row> rows_of(const std::string& page) {
  std::vector<Row> rows;
  const auto at = page.find("## Flags of one verb");
  REQUIRE(at != std::string::npos);
  const std::string table = page.substr(at);
  const std::regex line("\\n\\| ?([^|]*) \\| (`--[^|]*) \\| ?([^|\\n]*)\\|");
  for (std::sregex_iterator it(table.begin(), table.end(), line), end; it != end; ++it) {
    Row row{matches((*it)[1], std::regex("`([a-z]+)`")), matches((*it)[2], kFlag), (*it)[3]};
    if ((*it)[1].length() == 0) row.verbs = rows.back().verbs;
    rows.push_back(row);
  }
  return rows;
}

// What --help of the verb, and of all below it, prints of flags.
std::set<std::string> flags_of(const std::string& verb) {
  const std::string help = help_of(verb);
  std::set<std::string> flags = matches(help, kFlag);
  for (const std::string& below : verbs_of(help))
    flags.merge(matches(help_of(fmt::format("{} {}", verb, below)), kFlag));
  return flags;
}

}  // namespace

TEST_CASE(
    "each row of flags in docs/cli.md is beside a verb that has them, and each verb's flags are in one") {
  const std::string page = read_page();
  const std::string shared_flags = page.substr(
      page.find("## The problem"), page.find("## Flags of one verb") - page.find("## The problem"));
  const std::vector<Row> rows = rows_of(page);
  CHECK(rows.size() >= 15);
  for (const std::string& verb : verbs_of(help_of(""))) {
    std::set<std::string> allowed = matches(shared_flags, kFlag);
    const std::set<std::string> flags = flags_of(verb);
    for (const Row& row : rows) {
      const bool of_all = row.verbs.empty();
      const bool named = row.meaning.find("`" + verb + "`") != std::string::npos;
      if (of_all || named || row.verbs.count(verb) == 1) allowed.insert(row.flags.begin(), row.flags.end());
      for (const std::string& flag : row.flags) {
        if (row.verbs.count(verb) == 1)
          CHECK_MESSAGE(flags.count(flag) == 1, flag << " is in docs/cli.md, but " << verb << " has it not");
      }
    }
    for (const std::string& flag : flags)
      CHECK_MESSAGE(allowed.count(flag) == 1, flag << " of " << verb << " is not in docs/cli.md");
  }
}

TEST_CASE("docs/cli.md names every verb and every flag, and no flag that is not there") {
  const std::string page = read_page();
  std::set<std::string> flags = matches(help_of(""), kFlag);
  const std::set<std::string> verbs = verbs_of(help_of(""));
  CHECK(verbs.size() >= 8);
  for (const std::string& verb : verbs) {
    CHECK_MESSAGE(page.find("| `" + verb + "`") != std::string::npos, verb << " is not in docs/cli.md");
    const std::string help = help_of(verb);
    flags.merge(flags_of(verb));
    for (const std::string& below : verbs_of(help)) {
      CHECK_MESSAGE(page.find("`" + below + "`") != std::string::npos,
                    verb << " " << below << " is not in docs/cli.md");
    }
  }
  const std::set<std::string> documented = matches(page, kFlag);
  for (const std::string& name : flags)
    CHECK_MESSAGE(documented.count(name) == 1, name << " is not in docs/cli.md");
  for (const std::string& name : documented)
    CHECK_MESSAGE(flags.count(name) == 1, name << " is in docs/cli.md, but no verb has it");
}
