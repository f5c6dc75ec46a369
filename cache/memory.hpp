// The first layer: entries in this process; the least recently used go first.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "cache/entry.hpp"

namespace flashjit::cache {

class MemoryLayer {
 public:
  explicit MemoryLayer(std::size_t limit) : limit_(limit) {}
  std::shared_ptr<const Entry> get(const Key& key, const std::string& digest);
  void put(std::shared_ptr<const Entry> entry, const std::string& digest);

 private:
  using Item = std::pair<std::string, std::shared_ptr<const Entry>>;
  const std::size_t limit_;  // bytes; the newest entry stays even if it alone is larger
  std::mutex mutex_;
  std::list<Item> items_;  // most recently used first
  std::unordered_map<std::string, std::list<Item>::iterator> by_digest_;
  std::size_t bytes_ = 0;
};

}  // namespace flashjit::cache
