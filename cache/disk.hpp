// A layer of entries in a directory, one file each, shared with every other process that uses the directory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "cache/directory.hpp"
#include "cache/entry.hpp"
#include "cache/lock.hpp"
#include "cache/store.hpp"

namespace flashjit::cache {

inline constexpr std::size_t kLargestEntry = std::size_t{256} << 20;  // bytes; a larger file is not an entry

class DiskLayer {
 public:
  struct Options {
    std::filesystem::path path;
    Trust trust = Trust::verify;
    bool writable = true;
    std::uint64_t size_limit = 0;
    Warn warn;
  };
  explicit DiskLayer(Options options);  // throws Error{io} as open_directory does

  std::shared_ptr<const Entry> get(const Key& key, const std::string& digest);
  void put(const Entry& entry, const std::string& digest);
  FolderLock lock_for_compile(const std::string& digest, std::chrono::milliseconds patience);

 private:
  std::shared_ptr<const File> folder();  // null if it is not open
  void open(bool create);
  void stop_writing(std::string_view why);
  void sweep_if_due(int folder, std::uint64_t written);
  // Whether a damaged entry is reported for the first time. One that stays is met at every lookup.
  bool is_news(const std::string& name);

  const Options options_;
  std::mutex mutex_;  // guards folder_ and the four members below it
  std::shared_ptr<const File> folder_;
  bool open_later_ = false;  // what kept the folder from being opened may pass
  std::uint64_t written_since_sweep_ = 0;
  bool swept_ = false;
  std::set<std::string> damaged_;
  std::atomic<bool> writable_;
};

}  // namespace flashjit::cache
