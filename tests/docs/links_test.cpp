// Each link of the documents to a file of the repository, or to a heading of one, has a target.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

const fs::path kRoot = FLASHJIT_ROOT;

std::vector<fs::path> documents() {
  std::vector<fs::path> found{kRoot / "README.md"};
  for (const char* folder : {"docs", "bench", "autotune", "examples"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      if (entry.path().extension() == ".md") found.push_back(entry.path());
    }
  }
  return found;
}

// Without blocks of code, where brackets are no links and '#' is no heading.
std::string prose_of(const fs::path& document) {
  std::ifstream file(document);
  std::ostringstream text;
  bool code = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("```"))
      code = !code;
    else if (!code)
      text << line << '\n';
  }
  return text.str();
}

// As GitHub makes it: small letters, digits, hyphens and underscores; blanks become hyphens; a link's text.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : std::regex_replace(heading, std::regex(R"(\[([^\]]*)\]\([^)]*\))"), "$1")) {
    if (c == ' ') anchor += '-';
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_')
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return anchor;
}

std::set<std::string> anchors_of(const fs::path& document) {
  std::set<std::string> anchors;
  std::istringstream text(prose_of(document));
  for (std::string line; std::getline(text, line);) {
    const auto hashes = line.find_first_not_of('#');
    if (hashes == 0 || hashes == std::string::npos || line[hashes] != ' ') continue;
    const std::string anchor = anchor_of(line.substr(hashes + 1));
    std::string numbered = anchor;  // a heading that comes again has a number
    for (int again = 1; !anchors.insert(numbered).second; ++again)
      numbered = fmt::format("{}-{}", anchor, again);
  }
  return anchors;
}

}  // namespace

TEST_CASE("each link in the documents has a target") {
  std::map<fs::path, std::set<std::string>> anchors;
  const std::regex link(R"(\]\(([^)\s]+)\))");
  int links = 0;
  for (const fs::path& document : documents()) {
    const std::string text = prose_of(document);
    for (std::sregex_iterator it(text.begin(), text.end(), link), end; it != end; ++it) {
      const std::string target = (*it)[1];
      if (target.find("://") != std::string::npos || target.starts_with("mailto:")) continue;
      ++links;
      INFO(fs::relative(document, kRoot).string(), ": ", target);
      const auto hash = target.find('#');
      const std::string file = target.substr(0, hash);
      const fs::path to = file.empty() ? document : (document.parent_path() / file).lexically_normal();
      CHECK(fs::exists(to));
      if (hash == std::string::npos || to.extension() != ".md" || !fs::exists(to)) continue;
      if (!anchors.contains(to)) anchors[to] = anchors_of(to);
      CHECK(anchors[to].contains(target.substr(hash + 1)));
    }
  }
  CHECK(links > 300);
}
