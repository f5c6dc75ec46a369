// The first layer: entries in this process; the least recently used go first.
#include "cache/memory.hpp"

namespace flashjit::cache {

std::shared_ptr<const Entry> MemoryLayer::get(const Key& key, const std::string& digest) {
  const std::lock_guard lock(mutex_);
  const auto found = by_digest_.find(digest);
  if (found == by_digest_.end() || found->second->second->key != key) return nullptr;
  items_.splice(items_.begin(), items_, found->second);
  return found->second->second;
}

void MemoryLayer::put(std::shared_ptr<const Entry> entry, const std::string& digest) {
  const std::lock_guard lock(mutex_);
  if (const auto found = by_digest_.find(digest); found != by_digest_.end()) {
    bytes_ -= found->second->second->size();
    items_.erase(found->second);
    by_digest_.erase(found);
  }
  bytes_ += entry->size();
  items_.emplace_front(digest, std::move(entry));
  by_digest_.emplace(digest, items_.begin());
  while (bytes_ > limit_ && items_.size() > 1) {
    bytes_ -= items_.back().second->size();
    by_digest_.erase(items_.back().first);
    items_.pop_back();
  }
}

}  // namespace flashjit::cache
