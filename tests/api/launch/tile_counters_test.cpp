// Which launch counts its tiles where.
#include "api/launch/tile_counters.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "tests/api/support.hpp"

namespace flashjit::test {
namespace {

TEST_CASE("a stream has one counter, and a captured launch one of its own") {
  FakeDevice device;
  api::TileCounters counters(device, {.zeros = 2});
  const auto stream = [](std::uintptr_t handle) { return reinterpret_cast<Stream>(handle); };
  int* const one = counters.for_launch(stream(0x100)).zeros;
  CHECK(one[0] == 0);
  CHECK(one[1] == 0);
  CHECK(counters.for_launch(stream(0x100)).zeros == one);
  std::set<int*> seen{one};
  for (std::uintptr_t handle = 0x200; handle < 0x200 + 40; ++handle) {
    CHECK(seen.insert(counters.for_launch(stream(handle)).zeros).second);
  }
  CHECK(counters.for_launch(stream(0x100)).zeros == one);  // not among this thread's last ones any more
  std::thread([&] { CHECK(counters.for_launch(stream(0x100)).zeros == one); }).join();
  SUBCASE("the per-thread default stream is a different stream in each thread") {
    int* const mine = counters.for_launch(stream(2)).zeros;
    std::thread([&] { CHECK(counters.for_launch(stream(2)).zeros != mine); }).join();
    CHECK(counters.for_launch(stream(2)).zeros == mine);
  }
  SUBCASE("captured launches, until they run out, and prepare makes room") {
    device.captures = true;
    std::size_t captured = 0;
    try {
      for (;; ++captured) {
        int* const counter =
            counters.for_launch(stream(0x100)).zeros;  // not inside a CHECK, which would catch the end
        CHECK(seen.insert(counter).second);
      }
    } catch (const Error& error) {
      CHECK(error.hint().find("Engine::prepare") != std::string::npos);
    }
    CHECK(captured > 8000);
    device.captures = false;
    CHECK(counters.for_launch(stream(0x100)).zeros == one);
    counters.replenish();
    device.captures = true;
    CHECK(seen.insert(counters.for_launch(stream(0x100)).zeros).second);
  }
  SUBCASE("streams without end") {
    for (std::uintptr_t handle = 0x10000; handle < 0x10000 + 9000; ++handle) {
      REQUIRE(seen.insert(counters.for_launch(stream(handle)).zeros).second);
    }
  }
}

TEST_CASE("memory beside a counter is its stream's; a captured launch has none") {
  FakeDevice device;
  const std::size_t before = device.bytes_alive();
  api::TileCounters counters(device, {.zeros = 256, .bytes = 4096});
  const std::size_t bare = counters.bytes();
  const auto stream = [](std::uintptr_t handle) { return reinterpret_cast<Stream>(handle); };
  void* const one = counters.for_launch(stream(0x100)).memory;
  CHECK(one != nullptr);
  CHECK(counters.for_launch(stream(0x100)).memory == one);
  CHECK(counters.for_launch(stream(0x200)).memory != one);
  CHECK(counters.bytes() == bare + 2 * 4096);
  CHECK(device.bytes_alive() == before + counters.bytes());
  device.captures = true;
  CHECK(counters.for_launch(stream(0x100)).memory == nullptr);
}

// A device that knows which threads have waited for a stream of their own.
struct Waited : FakeDevice {
  std::mutex guard;
  std::set<std::thread::id> waited;
  bool fails = false;
  void synchronize(runtime::Stream stream) override {
    if (fails) throw Error(ErrorCode::device, "no end");
    const std::lock_guard lock(guard);
    if (stream == reinterpret_cast<Stream>(std::uintptr_t{2})) waited.insert(std::this_thread::get_id());
  }
};

const auto kOwn = reinterpret_cast<Stream>(std::uintptr_t{2});  // CU_STREAM_PER_THREAD

TEST_CASE("a thread that ends waits for its own stream and hands back what it was lent") {
  Waited device;
  auto counters =
      std::make_unique<api::TileCounters>(device, api::TileCounters::Size{.zeros = 256, .bytes = 4096});
  using Lent = api::TileCounters::Lent;
  Lent first;
  std::thread::id thread;
  const auto lend = [&](Lent& lent) {
    std::thread one([&] { lent = counters->for_launch(kOwn); });
    thread = one.get_id();
    one.join();
  };
  lend(first);
  const std::size_t bytes = device.bytes_alive();
  device.waited.clear();
  for (int i = 0; i < 10; ++i) {
    Lent again;
    lend(again);
    CHECK(device.waited.count(thread) == 1);
    CHECK(again.zeros == first.zeros);
    CHECK(again.memory == first.memory);
    CHECK(device.bytes_alive() == bytes);
  }
  SUBCASE("not to two threads at once, nor back to itself") {
    const Lent mine = counters->for_launch(kOwn);  // this thread lives on
    CHECK(mine.memory == first.memory);
    Lent other;
    lend(other);
    CHECK(other.zeros != mine.zeros);
    CHECK(other.memory != mine.memory);
    CHECK(counters->for_launch(kOwn).memory == mine.memory);
  }
  SUBCASE("to any stream") {
    CHECK(counters->for_launch(nullptr).memory == first.memory);
    Lent other;
    lend(other);
    CHECK(other.memory != first.memory);
  }
  SUBCASE("the counters may go before the thread") {
    std::thread([&] {
      static_cast<void>(counters->for_launch(kOwn));
      counters.reset();
      device.waited.clear();
    }).join();
    CHECK(device.waited.empty());
    CHECK(device.bytes_alive() == 0);
  }
  SUBCASE("nothing is handed back in a capture, or where the wait fails") {
    for (const bool captures : {true, false}) {
      Lent kept;
      std::thread([&] {
        kept = counters->for_launch(kOwn);
        (captures ? device.captures : device.fails) = true;
      }).join();
      device.captures = device.fails = false;
      Lent other;
      lend(other);
      CHECK(other.zeros != kept.zeros);
      CHECK(other.memory != kept.memory);
    }
  }
}

TEST_CASE("a launch from what a thread does at its very end shares with nobody") {
  FakeDevice device;
  api::TileCounters counters(device, {.zeros = 2});
  struct Last {
    api::TileCounters* counters = nullptr;
    int** seen = nullptr;
    ~Last() {
      if (counters != nullptr) *seen = counters->for_launch(kOwn).zeros;
    }
  };
  int* seen = nullptr;
  std::thread([&] {
    thread_local Last last;  // made before the counters know this thread, so it goes after they have left it
    last.counters = &counters;
    last.seen = &seen;
    static_cast<void>(counters.for_launch(kOwn));
  }).join();
  REQUIRE(seen != nullptr);
  std::thread([&] { CHECK(counters.for_launch(kOwn).zeros != seen); }).join();
}

TEST_CASE("only so many streams have memory of their own") {
  FakeDevice device;
  api::TileCounters counters(device, {.zeros = 256, .bytes = 4096});
  const auto stream = [](std::size_t i) { return reinterpret_cast<Stream>(0x100 + i); };
  std::set<int*> zeros;
  for (std::size_t i = 0; i < api::TileCounters::kMostMemories; ++i)
    CHECK(counters.for_launch(stream(i)).memory != nullptr);
  const std::size_t bytes = device.bytes_alive();
  for (std::size_t i = 0; i < 100; ++i) {
    const auto lent = counters.for_launch(stream(api::TileCounters::kMostMemories + i));
    CHECK(lent.memory == nullptr);
    CHECK(zeros.insert(lent.zeros).second);
  }
  CHECK(device.bytes_alive() == bytes);
  CHECK(counters.for_launch(stream(0)).memory != nullptr);
}

TEST_CASE("zeros come in no stream of the caller's, which may be in capture") {
  struct Capturing : FakeDevice {
    void fill(void*, std::uint8_t, std::size_t, runtime::Stream) override { FAIL("it is in the graph"); }
    void synchronize(runtime::Stream) override { FAIL("nobody can wait for a capture"); }
    void clear(void* to, std::size_t bytes) override { std::memset(to, 0, bytes); }
  } device;
  api::TileCounters counters(device, {.zeros = 2});
  CHECK(counters.for_launch(nullptr).zeros[1] == 0);
}

TEST_CASE("counters that could not be zeroed are given to nobody, and their memory goes") {
  struct Failing : FakeDevice {
    bool fails = false;
    void synchronize(runtime::Stream) override {
      if (fails) throw Error(ErrorCode::device, "no zeros");
    }
    void fill(void* to, std::uint8_t value, std::size_t bytes, runtime::Stream stream) override {
      FakeDevice::fill(to, fails ? 0xff : value, bytes, stream);  // whatever is there before the zeros come
    }
  } device;
  device.fails = true;
  CHECK_THROWS_WITH_AS(api::TileCounters(device, {.zeros = 2}), "no zeros", Error);
  CHECK(device.bytes_alive() == 0);

  device.fails = false;
  api::TileCounters counters(device, {.zeros = 2});
  const std::size_t bytes = counters.bytes();
  const auto stream = [](std::uintptr_t handle) { return reinterpret_cast<Stream>(handle); };
  std::uintptr_t handle = 0x10000;
  device.fails = true;
  CHECK_THROWS_WITH_AS(for (;; ++handle) static_cast<void>(counters.for_launch(stream(handle)).zeros),
                       "no zeros", Error);
  CHECK_THROWS_WITH_AS(static_cast<void>(counters.for_launch(stream(handle)).zeros), "no zeros", Error);
  CHECK_THROWS_WITH_AS(counters.replenish(), "no zeros", Error);
  CHECK(device.bytes_alive() == bytes);
  CHECK(counters.bytes() == bytes);
  device.fails = false;
  const int* const counter = counters.for_launch(stream(handle)).zeros;
  CHECK(counter[0] == 0);
  CHECK(counter[1] == 0);
}

}  // namespace
}  // namespace flashjit::test
