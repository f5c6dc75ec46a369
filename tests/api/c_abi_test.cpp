// Runs the C program, and checks from C++ what C cannot: messages are per thread.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <thread>

#include "api/c_handles.hpp"
#include "tests/api/support.hpp"

extern "C" int run_c_abi_checks();

TEST_CASE("the C interface from C11") {
  CHECK(run_c_abi_checks() == 0);
}

TEST_CASE("each thread has its own last error") {
  CHECK(flashjit_engine_create(nullptr, nullptr) == FLASHJIT_INVALID_ARGUMENT);
  const std::string mine = flashjit_last_error();
  CHECK(mine.find("engine is null") != std::string::npos);
  std::thread([] {
    CHECK(std::string(flashjit_last_error()).empty());
    CHECK(flashjit_forward(nullptr, nullptr, nullptr) == FLASHJIT_INVALID_ARGUMENT);
    CHECK(std::string(flashjit_last_error()).find("plan is null") != std::string::npos);
  }).join();
  CHECK(flashjit_last_error() == mine);
}

// A device that frees whatever it is given, as CUDA's frees all that was ever allocated on the GPU.
struct Careless : flashjit::test::FakeDevice {
  int released = 0;
  bool release(void* pointer) override {
    ++released;
    static_cast<void>(FakeDevice::release(pointer));
    return true;
  }
};

TEST_CASE("memory that an engine did not allocate is not freed by it") {
  using namespace flashjit;
  test::CompilerScript script;
  const EngineOptions options{.use_cache = false};
  auto made = std::make_unique<Careless>();
  Careless& device = *made;
  auto state =
      std::make_shared<EngineState>(options, EngineState::Parts{.device = std::move(made),
                                                                .store = cache::open_store({}),
                                                                .wisdom_file = {},
                                                                .system_wisdom_file = {},
                                                                .templates = embedded_templates(),
                                                                .load_compiler = test::loader(script)});
  flashjit_engine engine{state, EngineAccess::make(state), "fake", "fake"};
  void* const foreign = device.allocate(64);
  CHECK(flashjit_free(&engine, foreign) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(std::string(flashjit_last_error()).find("what flashjit_allocate gave") != std::string::npos);
  CHECK(device.released == 0);
  void* own = nullptr;
  REQUIRE(flashjit_allocate(&engine, 64, &own) == FLASHJIT_OK);
  CHECK(flashjit_free(&engine, own) == FLASHJIT_OK);
  CHECK(device.released == 1);
  CHECK(flashjit_free(&engine, own) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(device.released == 1);
  CHECK(flashjit_free(&engine, nullptr) == FLASHJIT_OK);
  device.free(foreign);
}
