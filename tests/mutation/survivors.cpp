#include "tests/mutation/survivors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "flashjit/error.hpp"

namespace flashjit::test {

Survivors::Survivors(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw Error(ErrorCode::io, fmt::format("{} cannot be read", path.string()));
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::vector<std::string> fields;
    for (std::size_t at = 0; at <= line.size();) {
      const std::size_t bar = std::min(line.find(" | ", at), line.size());
      fields.push_back(line.substr(at, bar - at));
      at = bar + 3;
    }
    if (fields.size() != 4) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: \"{}\" has not four fields", path.string(), line));
    }
    lines_.push_back(std::move(fields));
  }
}

std::string Survivors::reason(const std::string& subject, const SyncMutant& mutant) const {
  for (const auto& fields : lines_) {
    if ((fields[0] == "*" || fields[0] == subject) && fields[1] == mutant.statement &&
        fields[2] == mutant.code) {
      return fields[3];
    }
  }
  return {};
}

}  // namespace flashjit::test
