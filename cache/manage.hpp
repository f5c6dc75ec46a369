// What a person does with a cache directory: look, verify, prune, clear. Behind `flashjit cache`.
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
  damaged,     // a checksum or a length is wrong, or it is larger than any entry
  misfiled,    // a whole entry, under a name that is not its digest
  unreadable,  // an I/O error: nothing is known about it
};
std::string_view to_string(Verdict verdict);

struct Row {
  std::string digest;  // as the file's name says
  std::uint64_t bytes = 0;
  std::time_t used = 0;  // last use, to within hours
  Verdict verdict = Verdict::good;
  std::string arch;  // the key's field, empty where it has none
  std::string name;  // what `describe` made of a good entry
};

// All of these work on options.directory and throw Error{io} where it can not be trusted or read. A directory
// that is not there is an empty cache.

// The directory, opened; empty where it is not there. Throws Error{not_found} where none is configured.
File open_cache(const StoreOptions& options, bool create);

// What to call an entry: only who made it knows what its sections say.
using Describe = std::function<std::string(const Entry& entry)>;

// Reads and checks every entry; most recently used first.
std::vector<Row> list_entries(const StoreOptions& options, const Describe& describe = {});

// The one entry whose digest starts with `prefix`. Throws Error{not_found} for none, {invalid_argument} for
// several or for what is no digest, {io} when it is not good.
Entry load_entry(const StoreOptions& options, const std::string& prefix);

// Removes the rows that list_entries found damaged or misfiled, if they still are; returns how many. It,
// prune and clear throw Error{io} for what cannot be removed.
std::uint64_t remove_bad(const StoreOptions& options, const std::vector<Row>& rows);

// A sweep down to `limit` bytes. Throws Error{io} while another process sweeps.
SweepResult prune(const StoreOptions& options, std::uint64_t limit);

struct Cleared {
  std::uint64_t entries = 0;
  std::uint64_t bytes = 0;
  std::uint64_t temporaries = 0;
  std::uint64_t wisdom = 0;
};
// Removes every entry and temporary file, and wisdom if asked to: it takes longer to learn than a kernel to
// build.
Cleared clear(const StoreOptions& options, bool wisdom_too);

}  // namespace flashjit::cache
