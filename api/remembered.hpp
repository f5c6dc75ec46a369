// A table of answers that can be found again. When the table is full, all are forgotten.
#pragma once

#include <cstddef>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

namespace flashjit::api {

template <class Key, class Value, class Hash>
class Remembered {
 public:
  explicit Remembered(std::size_t room) : room_(room) {}

  // A default Value if the key is not known.
  Value find(const Key& key) const {
    const std::shared_lock lock(mutex_);
    const auto found = known_.find(key);
    return found == known_.end() ? Value{} : found->second;
  }

  void keep(Key key, Value value) {
    const std::unique_lock lock(mutex_);
    if (known_.size() >= room_) known_.clear();
    known_.insert_or_assign(std::move(key), std::move(value));
  }

 private:
  const std::size_t room_;
  mutable std::shared_mutex mutex_;
  std::unordered_map<Key, Value, Hash> known_;
};

}  // namespace flashjit::api
