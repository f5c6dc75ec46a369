// Where entries are kept: in memory, a user's directory, a read-only system directory, or layers of these.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cache/directory.hpp"
#include "cache/entry.hpp"
#include "cache/lock.hpp"
#include "flashjit/error.hpp"

namespace flashjit::cache {

struct Hit {
  std::shared_ptr<const Entry> entry;  // null: a miss
  std::string_view layer;              // "memory", "disk", "system"
};

// get never throws because of what is on disk: a bad entry is a miss. put never throws because a disk is full
// or read-only: it warns once through `warn` and then keeps entries in memory. Both may be called from many
// threads and many processes.
class Store {
 public:
  virtual ~Store() = default;
  virtual Hit get(const Key& key) = 0;
  // What each directory has under the key of a list; the user's comes first.
  virtual std::vector<Hit> get_all(const Key& key) = 0;
  virtual void put(std::shared_ptr<const Entry> entry) = 0;
  // To be held from a miss until its compile, so that other processes don't do the same work. Waits for at
  // most `patience`. Go on whatever the lock's state is, but call get again first unless it is `unavailable`,
  // since another process may have published the entry. Stores without a directory have no lock.
  virtual FolderLock lock_for_compile(const Key&, std::chrono::milliseconds /*patience*/) { return {}; }
};

using Warn = std::function<void(std::string_view line)>;

struct StoreOptions {
  std::filesystem::path directory;         // empty: memory only
  Trust trust = Trust::verify;             // as_given for a directory that the user named
  std::filesystem::path system_directory;  // read-only layer; empty: none
  std::uint64_t size_limit = 1ull << 30;   // bytes on disk; the least recently used entries go first
  Warn warn;
};

// Memory, then the directory, then the system directory. Throws Error{io} that says what to do if a directory
// is not a directory or cannot be trusted (not ours, a symlink, writable by others). If one cannot be made or
// written to, `warn` is called.
std::unique_ptr<Store> open_store(const StoreOptions& options);

// Options from `named` (a directory from a flag or an API; empty: none) and the environment:
// FLASHJIT_CACHE_DIR, FLASHJIT_SYSTEM_CACHE_DIR, FLASHJIT_CACHE_SIZE (bytes, or with k, M, G, T; 0: memory
// only). Throws Error{invalid_argument} for a value that makes no sense.
StoreOptions options_from_environment(const std::filesystem::path& named = {});

// For callers that need a directory although options.directory is empty: Error{not_found} that says why it
// is.
Error no_directory(const StoreOptions& options);

// The directory as an absolute path, which no chdir changes. Throws Error{io} if `named` is relative and the
// working directory is gone.
std::filesystem::path absolute_directory(const std::filesystem::path& named);

// FLASHJIT_CACHE_DIR, else $XDG_CACHE_HOME/flashjit, else ~/.cache/flashjit; empty if there is no home.
std::filesystem::path default_directory();

// "500M", "2G", "1048576": bytes. Throws Error{invalid_argument} that names `name`, a flag or variable.
std::uint64_t parse_size(std::string_view text, std::string_view name);

}  // namespace flashjit::cache
