// Which launch counts its tiles where.
#include "api/launch/tile_counters.hpp"

#include <doctest/doctest.h>

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
