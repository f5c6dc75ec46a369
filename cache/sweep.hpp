// Keeps a cache directory below its size limit, and free of what killed writers left.
#pragma once

#include <cstdint>
#include <string>

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

// If there are more than `limit` bytes, the least recently used entries go until nine tenths of `limit` are
// left, so that the next entry causes no sweep. Temporary files that were not written to for an hour go too.
SweepResult sweep(int folder, std::uint64_t limit);

}  // namespace flashjit::cache
