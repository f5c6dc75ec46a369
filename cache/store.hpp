// Where entries live: memory, a user's directory, a read-only system directory, and layers of these.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "cache/entry.hpp"

namespace flashjit::cache {

struct Hit {
  std::shared_ptr<const Entry> entry;  // null: a miss
  std::string_view layer;              // "memory", "disk", "system"
};

// get never throws for what is on disk: a bad entry is a miss. put never throws for a full or read-only disk: it warns
// once through `warn` and goes on in memory. Both are safe from many threads and many processes.
class Store {
 public:
  virtual ~Store() = default;
  virtual Hit get(const Key& key) = 0;
  virtual void put(std::shared_ptr<const Entry> entry) = 0;
};

using Warn = std::function<void(std::string_view line)>;

struct StoreOptions {
  std::filesystem::path directory;         // empty: memory only
  std::filesystem::path system_directory;  // read-only layer; empty: none
  std::uint64_t size_limit = 1ull << 30;   // bytes on disk, least recently used goes first
  Warn warn;
};

// memory ▸ directory ▸ system directory. Throws Error{io} when the directory cannot be trusted (not ours, a symlink,
// writable by others), with what to do about it.
std::unique_ptr<Store> open_store(const StoreOptions& options);

// FLASHJIT_CACHE_DIR, else $XDG_CACHE_HOME/flashjit, else ~/.cache/flashjit; empty when there is no home.
std::filesystem::path default_directory();

}  // namespace flashjit::cache
