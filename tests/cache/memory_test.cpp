// The layer in memory: what goes when it is full, and what it counts.
#include "cache/memory.hpp"

#include <doctest/doctest.h>

#include "tests/cache/scratch.hpp"

namespace flashjit::cache {
namespace {

using testing::numbered_entry;

struct Layer {
  explicit Layer(std::size_t limit) : memory(limit) {}
  void put(const Entry& entry) { memory.put(std::make_shared<const Entry>(entry), entry.key.digest()); }
  bool has(std::uint64_t n) {
    const Key key = numbered_entry(n).key;
    return memory.get(key, key.digest()) != nullptr;
  }
  MemoryLayer memory;
};

TEST_CASE("a full memory forgets what was used the longest time ago") {
  Layer layer(3 * numbered_entry(0).size());
  for (std::uint64_t n = 0; n < 3; ++n) layer.put(numbered_entry(n));
  CHECK(layer.has(0));  // exactly full; and a look is a use
  layer.put(numbered_entry(3));
  CHECK_FALSE(layer.has(1));
  for (const std::uint64_t n : {0, 2, 3}) CHECK(layer.has(n));
}

TEST_CASE("an entry that is put again counts once, and the newest stays however large it is") {
  Layer layer(3 * numbered_entry(0).size());
  for (std::uint64_t n = 0; n < 2; ++n) layer.put(numbered_entry(n));
  for (int again = 0; again < 5; ++again) layer.put(numbered_entry(2));
  for (std::uint64_t n = 0; n < 3; ++n) CHECK(layer.has(n));
  const Entry large = numbered_entry(4, 100'000);
  layer.put(large);
  CHECK(layer.memory.get(large.key, large.key.digest()) != nullptr);
  for (std::uint64_t n = 0; n < 3; ++n) CHECK_FALSE(layer.has(n));
  layer.put(numbered_entry(0));  // what went is no longer counted
  layer.put(numbered_entry(1));
  CHECK(layer.has(0));
  CHECK(layer.has(1));
}

TEST_CASE("another key with the same digest is a miss") {
  Layer layer(1 << 20);
  layer.put(numbered_entry(0));
  CHECK(layer.memory.get(numbered_entry(1).key, numbered_entry(0).key.digest()) == nullptr);
}

}  // namespace
}  // namespace flashjit::cache
