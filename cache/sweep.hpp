// Keeps a cache directory below its size limit, and free of what killed writers left.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>

#include "cache/directory.hpp"

namespace flashjit::cache {

struct SweepResult {
  bool done = false;          // false: another process is sweeping
  std::uint64_t entries = 0;  // before the sweep
  std::uint64_t bytes = 0;
  std::uint64_t removed_entries = 0;
  std::uint64_t removed_bytes = 0;
  std::uint64_t removed_temporaries = 0;
  std::string stuck;  // the first file that could not be removed; empty: none
  int error = 0;      // errno that says why it could not be removed
};

// Whether a file is a temporary that nobody writes to any more: it was not written to for an hour, or is of a
// clock that ran ahead.
bool is_stale_temporary(const DirectoryItem& item, std::time_t now);

// If there are more than `limit` bytes, the least recently used entries go until nine tenths of `limit` are
// left, so that the next entry causes no sweep. Stale temporary files go too.
SweepResult sweep(int folder, std::uint64_t limit);

}  // namespace flashjit::cache
