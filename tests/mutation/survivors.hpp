// Deleted statements that no check notices, and why (survivors.txt).
#pragma once

#include <filesystem>
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

}  // namespace flashjit::test
