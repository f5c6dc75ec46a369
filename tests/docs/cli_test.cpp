// docs/cli.md names every verb and every flag of the command, and no flag that it does not have.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

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

}  // namespace

TEST_CASE("docs/cli.md names every verb and every flag, and no flag that is not there") {
  std::ifstream file(FLASHJIT_ROOT "/docs/cli.md");
  std::ostringstream text;
  text << file.rdbuf();
  const std::string page = text.str();

  const std::regex flag("(--[a-z][a-z-]+)");
  std::set<std::string> flags = matches(help_of(""), flag);
  const std::set<std::string> verbs = verbs_of(help_of(""));
  CHECK(verbs.size() >= 8);
  for (const std::string& verb : verbs) {
    CHECK_MESSAGE(page.find("| `" + verb + "`") != std::string::npos, verb << " is not in docs/cli.md");
    const std::string help = help_of(verb);
    flags.merge(matches(help, flag));
    for (const std::string& below : verbs_of(help)) {
      CHECK_MESSAGE(page.find("`" + below + "`") != std::string::npos,
                    verb << " " << below << " is not in docs/cli.md");
      flags.merge(matches(help_of(fmt::format("{} {}", verb, below)), flag));
    }
  }
  const std::set<std::string> documented = matches(page, flag);
  for (const std::string& name : flags)
    CHECK_MESSAGE(documented.count(name) == 1, name << " is not in docs/cli.md");
  for (const std::string& name : documented)
    CHECK_MESSAGE(flags.count(name) == 1, name << " is in docs/cli.md, but no verb has it");
}
