// Deleted statements that no check notices, and why (survivors.txt).
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/mutation/sync_mutants.hpp"

namespace flashjit::test {

class Survivors {
 public:
  // Lines of "subject | statement | code | reason", where a subject of * stands for any. Throws Error where
  // the file cannot be read.
  explicit Survivors(const std::filesystem::path& path);

  // Empty where there is none.
  [[nodiscard]] std::string reason(const std::string& subject, const SyncMutant& mutant) const;

 private:
  std::vector<std::vector<std::string>> lines_;
};

// How many of the statements that look the same survived when the report (sync_catches.txt) was made: a line
// of survivors.txt explains some of them as a rule, and would hide it if others came to survive.
class LastReport {
 public:
  // Throws Error where the file cannot be read.
  explicit LastReport(const std::filesystem::path& path);

  // Counts one more survivor; false if these are more than last time. Statements that the report does not
  // have may all survive.
  bool allows(const std::string& subject, const std::string& statement, const std::string& where);

 private:
  std::map<std::string, int> left_;
};

}  // namespace flashjit::test
