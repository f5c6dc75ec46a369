// A table of values that are slow to make and are made once: of many threads that ask for one key, the first
// makes the value and the others wait.
#pragma once

#include <algorithm>
#include <functional>
#include <future>
#include <list>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

namespace flashjit::api {

template <class Key, class Value, class Hash>
class SingleFlight {
 public:
  // The value if it has been made; a default Value if not, or not yet.
  Value find(const Key& key) const {
    const std::shared_lock lock(mutex_);
    const auto found = made_.find(key);
    return found == made_.end() ? Value{} : found->second;
  }

  // The value, made by make() if necessary. What make() throws is thrown in all waiting threads, and the next
  // one to ask tries again. make() must not ask for the same key.
  Value get(const Key& key, const std::function<Value()>& make) {
    std::promise<Value> promise;
    typename Flights::iterator mine;
    {
      std::unique_lock lock(mutex_);
      if (const auto found = made_.find(key); found != made_.end()) return found->second;
      const auto found = std::find_if(under_way_.begin(), under_way_.end(),
                                      [&](const auto& flight) { return flight.first == key; });
      if (found != under_way_.end()) {
        const std::shared_future<Value> others = found->second;
        lock.unlock();
        return others.get();
      }
      mine = under_way_.emplace(under_way_.end(), key, promise.get_future().share());
    }
    try {
      Value value = make();
      {
        const std::unique_lock lock(mutex_);
        made_.emplace(key, value);
        under_way_.erase(mine);
      }
      promise.set_value(value);
      return value;
    } catch (...) {
      {
        const std::unique_lock lock(mutex_);
        under_way_.erase(mine);
      }
      promise.set_exception(std::current_exception());
      throw;
    }
  }

 private:
  // As many as there are threads that make something. A list, because a flight must end even where no memory
  // is left, which a Hash may need.
  using Flights = std::list<std::pair<Key, std::shared_future<Value>>>;

  mutable std::shared_mutex mutex_;
  std::unordered_map<Key, Value, Hash> made_;
  Flights under_way_;
};

}  // namespace flashjit::api
