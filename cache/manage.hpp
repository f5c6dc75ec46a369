// What a user does with a cache directory: list, verify, prune, clear. `flashjit cache` uses this.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/entry.hpp"
#include "cache/store.hpp"
#include "cache/sweep.hpp"

namespace flashjit::cache {

enum class Verdict {
  good,
  damaged,     // a checksum or a length is wrong, or the file is larger than any entry
  misfiled,    // an intact entry under a name that is not its digest
  unreadable,  // an I/O error: nothing is known about it
};
std::string_view to_string(Verdict verdict);

struct Row {
  std::string digest;  // from the file's name
  std::uint64_t bytes = 0;
  std::time_t used = 0;  // time of the last use, to within hours
  Verdict verdict = Verdict::good;
  std::string arch;  // the key's field; empty if there is none
  std::string name;  // what `describe` returned for a good entry
};

// All functions work on options.directory, and throw Error{io} if it cannot be trusted or read. A missing
// directory counts as an empty cache.

// Opens the directory; empty if it does not exist. Throws Error{not_found} if none is configured.
File open_cache(const StoreOptions& options, bool create);

// Names an entry for people. Only the room that made an entry understands its sections.
using Describe = std::function<std::string(const Entry& entry)>;

// Reads and checks every entry. Returns the most recently used first.
std::vector<Row> list_entries(const StoreOptions& options, const Describe& describe = {});

// The one entry whose digest starts with `prefix`. Throws Error{not_found} if there is none,
// {invalid_argument} if there are several or `prefix` is not part of a digest, {io} if the entry is not good.
Entry load_entry(const StoreOptions& options, const std::string& prefix);

// Removes the rows that list_entries found damaged or misfiled, if they still are. Returns how many.
// remove_bad, prune and clear throw Error{io} for what cannot be removed.
std::uint64_t remove_bad(const StoreOptions& options, const std::vector<Row>& rows);

// Sweeps down to `limit` bytes. Throws Error{io} while another process sweeps.
SweepResult prune(const StoreOptions& options, std::uint64_t limit);

struct Cleared {
  std::uint64_t entries = 0;
  std::uint64_t bytes = 0;
  std::uint64_t temporaries = 0;
  std::uint64_t wisdom = 0;
};
// Removes every entry and stale temporary file; wisdom only if asked to, since learning it takes longer than
// building a kernel. A temporary that is not stale may be wisdom that another process is writing.
Cleared clear(const StoreOptions& options, bool wisdom_too);

}  // namespace flashjit::cache
