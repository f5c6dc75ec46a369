// Where entries live: memory, a user's directory, a read-only system directory, and layers of these.
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

// get never throws for what is on disk: a bad entry is a miss. put never throws for a full or read-only disk:
// it warns once through `warn` and goes on in memory. Both are safe from many threads and many processes.
class Store {
 public:
  virtual ~Store() = default;
  virtual Hit get(const Key& key) = 0;
  // What each directory has under the key of a list, the user's first.
  virtual std::vector<std::shared_ptr<const Entry>> get_all(const Key& key) = 0;
  virtual void put(std::shared_ptr<const Entry> entry) = 0;
  // Between a miss and its compile: keeps other processes from doing the same work. Waits at most `patience`;
  // whatever the state it comes back with, go on, but ask get again first unless it is unavailable: somebody
  // may have published in between. Memory-only stores have none to give.
  virtual FolderLock lock_for_compile(const Key&, std::chrono::milliseconds /*patience*/) { return {}; }
};

using Warn = std::function<void(std::string_view line)>;

struct StoreOptions {
  std::filesystem::path directory;         // empty: memory only
  Trust trust = Trust::verify;             // as_given for a directory that the user named
  std::filesystem::path system_directory;  // read-only layer; empty: none
  std::uint64_t size_limit = 1ull << 30;   // bytes on disk, least recently used goes first
  Warn warn;
};

// memory ▸ directory ▸ system directory. Throws Error{io} when a directory is none or can not be trusted (not
// ours, a symlink, writable by others), with what to do about it. One that can not be made or written to is a
// warning.
std::unique_ptr<Store> open_store(const StoreOptions& options);

// Options from `named` (a directory from a flag or an API; empty: none) and the environment:
// FLASHJIT_CACHE_DIR, FLASHJIT_SYSTEM_CACHE_DIR, FLASHJIT_CACHE_SIZE (bytes, or with k, M, G, T; 0: memory
// only). Throws Error{invalid_argument} for a value that makes no sense.
StoreOptions options_from_environment(const std::filesystem::path& named = {});

// For who cannot do without a directory where options.directory is empty: Error{not_found} that says why it
// is.
Error no_directory(const StoreOptions& options);

// The same directory by a name that no chdir changes. Throws Error{io} for a relative one where the working
// directory is gone.
std::filesystem::path absolute_directory(const std::filesystem::path& named);

// FLASHJIT_CACHE_DIR, else $XDG_CACHE_HOME/flashjit, else ~/.cache/flashjit; empty when there is no home.
std::filesystem::path default_directory();

// "500M", "2G", "1048576": bytes. Throws Error{invalid_argument} naming `name`, the flag or variable it came
// from.
std::uint64_t parse_size(std::string_view text, std::string_view name);

}  // namespace flashjit::cache
