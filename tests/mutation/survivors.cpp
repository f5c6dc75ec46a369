#include "tests/mutation/survivors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "flashjit/error.hpp"

namespace flashjit::test {
namespace {

// The fields of a file's lines, which " | " parts, but for comments. Throws Error unless each has `wanted`.
std::vector<std::vector<std::string>> read_fields(const std::filesystem::path& path, std::size_t wanted) {
  std::ifstream file(path);
  if (!file) throw Error(ErrorCode::io, fmt::format("{} cannot be read", path.string()));
  std::vector<std::vector<std::string>> lines;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::vector<std::string> fields;
    for (std::size_t at = 0; at <= line.size();) {
      const std::size_t bar = std::min(line.find(" | ", at), line.size());
      fields.push_back(line.substr(at, bar - at));
      at = bar + 3;
    }
    if (fields.size() != wanted) {
      throw Error(ErrorCode::invalid_argument, fmt::format("{}: \"{}\" has {} fields, may have {}",
                                                           path.string(), line, fields.size(), wanted));
    }
    lines.push_back(std::move(fields));
  }
  return lines;
}

std::string key_of(const std::string& subject, const std::string& statement, const std::string& where) {
  return subject + " | " + statement + " | " + where;
}

}  // namespace

Survivors::Survivors(const std::filesystem::path& path) : lines_(read_fields(path, 4)) {}

std::string Survivors::reason(const std::string& subject, const SyncMutant& mutant) const {
  for (const auto& fields : lines_) {
    if ((fields[0] == "*" || fields[0] == subject) && fields[1] == mutant.statement &&
        fields[2] == mutant.code) {
      return fields[3];
    }
  }
  return {};
}

LastReport::LastReport(const std::filesystem::path& path) {
  for (const auto& fields : read_fields(path, 5)) {
    const bool survived = fields[4].starts_with("survives") || fields[4] == "SURVIVED";
    left_[key_of(fields[0], fields[2], fields[3])] += survived ? std::stoi(fields[1]) : 0;
  }
}

bool LastReport::allows(const std::string& subject, const std::string& statement, const std::string& where) {
  const auto found = left_.find(key_of(subject, statement, where));
  return found == left_.end() || found->second-- > 0;
}

}  // namespace flashjit::test
