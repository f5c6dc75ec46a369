// Keeps a cache directory under its size and free of what killed writers left.
#pragma once

#include <cstdint>
#include <string>

namespace flashjit::cache {

struct SweepResult {
  bool done = false;          // false: another process is at it
  std::uint64_t entries = 0;  // before
  std::uint64_t bytes = 0;
  std::uint64_t removed_entries = 0;
  std::uint64_t removed_bytes = 0;
  std::uint64_t removed_temporaries = 0;
  std::string stuck;  // the first that could not be removed; empty: there was none
  int error = 0;      // errno, why not
};

// Over `limit` bytes, the least recently used entries go until nine tenths of it are left, so that the next
// entry does not sweep again. Temporary files that nobody has written to for an hour go too.
SweepResult sweep(int folder, std::uint64_t limit);

}  // namespace flashjit::cache
