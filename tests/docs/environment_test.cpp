// The table of environment variables names exactly those that the code reads.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::set<std::string> matches(const std::string& text, const std::regex& pattern) {
  std::set<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it)
    found.insert((*it)[1]);
  return found;
}

}  // namespace

TEST_CASE("docs/environment.md lists every FLASHJIT_ variable that the code reads, and no other") {
  const fs::path root = FLASHJIT_ROOT;
  std::set<std::string> read_by_code;
  for (const char* room : {"api", "generator", "runtime", "emulator", "cache", "autotune", "cli"}) {
    for (const auto& file : fs::recursive_directory_iterator(root / room)) {
      if (file.path().extension() != ".cpp") continue;
      read_by_code.merge(matches(read(file.path()), std::regex("\"(FLASHJIT_[A-Z_]+)\"")));
    }
  }
  read_by_code.erase("FLASHJIT_ENTRY");  // what kernel templates call their function
  const auto documented = matches(read(root / "docs/environment.md"), std::regex("\\| `(FLASHJIT_[A-Z_]+)`"));
  for (const auto& name : read_by_code)
    CHECK_MESSAGE(documented.count(name) == 1, name << " is not in docs/environment.md");
  for (const auto& name : documented)
    CHECK_MESSAGE(read_by_code.count(name) == 1, name << " is documented, but nothing reads it");
}
