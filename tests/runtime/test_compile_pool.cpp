// The compile pool: single flight, failures, order, cancellation.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "flashjit/error.hpp"
#include "runtime/compile.hpp"
#include "tests/runtime/sources.hpp"
#include "tests/support/compile_pool.hpp"

using flashjit::Error;
using flashjit::ErrorCode;
using flashjit::runtime::Compiled;
using flashjit::test::CompilePool;

namespace {

std::shared_ptr<const Compiled> with_log(std::string log) {
  auto compiled = std::make_shared<Compiled>();
  compiled->log = std::move(log);
  return compiled;
}

}  // namespace

TEST_CASE("16 threads that want one key share one run") {
  CompilePool pool(4);
  std::atomic<int> runs{0};
  std::atomic<bool> go{false};
  std::atomic<int> submitted{0};
  std::vector<std::thread> threads;
  std::vector<const Compiled*> seen(16);
  threads.reserve(seen.size());
  for (const Compiled*& mine : seen) {
    threads.emplace_back([&] {
      while (!go) std::this_thread::yield();
      const CompilePool::Result result = pool.submit("key", [&](const std::atomic<bool>&) {
        ++runs;
        while (submitted < 16) std::this_thread::yield();  // nobody comes late
        return with_log("once");
      });
      ++submitted;
      mine = result.get().get();
    });
  }
  go = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(runs == 1);
  for (const Compiled* compiled : seen) CHECK(compiled == seen.front());
}

TEST_CASE("keys run side by side, and a finished key runs again") {
  CompilePool pool(2);
  std::atomic<int> inside{0};
  const auto meet = [&](const std::atomic<bool>&) {
    ++inside;
    while (inside < 2) std::this_thread::yield();  // returns only if both are in
    return with_log("met");
  };
  const auto a = pool.submit("a", meet);
  const auto b = pool.submit("b", meet);
  CHECK(a.get()->log == "met");
  CHECK(b.get()->log == "met");
  CHECK(pool.submit("a", [](const std::atomic<bool>&) { return with_log("again"); }).get()->log == "again");
}

TEST_CASE("what the work throws, every result throws, and the thread lives on") {
  CompilePool pool(1);
  const auto failing = pool.submit("bad", [](const std::atomic<bool>&) -> std::shared_ptr<const Compiled> {
    throw Error(ErrorCode::compile_failed, "no");
  });
  CHECK_THROWS_AS(failing.get(), Error);
  const auto odd = pool.submit("odd", [](const std::atomic<bool>&) -> std::shared_ptr<const Compiled> {
    throw std::length_error("too long");
  });
  CHECK_THROWS_AS(odd.get(), std::length_error);
  CHECK(pool.submit("good", [](const std::atomic<bool>&) { return with_log("yes"); }).get()->log == "yes");
}

TEST_CASE("the end cancels what waits and stops what runs") {
  CompilePool::Result running;
  CompilePool::Result waiting;
  {
    CompilePool pool(1);
    std::atomic<bool> began{false};
    running = pool.submit("running", [&began](const std::atomic<bool>& cancelled) {
      began = true;
      while (!cancelled) std::this_thread::yield();
      return with_log("stopped");
    });
    while (!began) std::this_thread::yield();
    waiting = pool.submit("waiting", [](const std::atomic<bool>&) { return with_log("never"); });
  }
  CHECK(running.get()->log == "stopped");
  CHECK_THROWS_WITH_AS(waiting.get(), "the compile of waiting was cancelled before it began", Error);
}

TEST_CASE("destroying the pool ends a real compile early") {
  const auto compiler = flashjit::runtime::load_nvrtc();
  CompilePool::Result result;
  std::clock_t start = 0;  // of this process's own time: other ones may keep the machine busy
  {
    CompilePool pool;
    std::atomic<bool> began{false};
    result = pool.submit("slow", [&](const std::atomic<bool>& cancelled) {
      const auto source = flashjit::test::slow_to_compile();
      began = true;
      return std::make_shared<const Compiled>(
          compiler->compile(source, flashjit::target_of("sm_90a"), std::chrono::milliseconds(0), &cancelled));
    });
    while (!began) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    start = std::clock();
  }
  CHECK((std::clock() - start) / CLOCKS_PER_SEC < 5);
  try {
    result.get();
    FAIL("not cancelled");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::compile_failed);
    CHECK(error.message().find("\"cancelled\"") != std::string::npos);
  }
}
