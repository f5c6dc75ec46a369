// Runs the C program, and checks from C++ what C cannot: messages are per thread.
#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include "api/c_handles.hpp"
#include "tests/api/at_exit.hpp"
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

TEST_CASE("a call that fails at exit says why, too") {
  // Longer than any message before it, so that it takes other memory.
  const std::string device(5000, 'x');
  CHECK(flashjit::test::holds_at_exit(
      [] { static_cast<void>(flashjit_forward(nullptr, nullptr, nullptr)); },
      [&] {
        const flashjit_engine_options options{.size = sizeof options, .device = device.c_str()};
        flashjit_engine* engine = nullptr;
        return std::string(flashjit_last_error()).empty() &&
               flashjit_engine_create(&options, &engine) == FLASHJIT_INVALID_ARGUMENT &&
               std::string(flashjit_last_error()).find(device) != std::string::npos;
      }));
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

// On a Careless device, which the engine owns.
struct CarelessEngine {
  flashjit::test::CompilerScript script;
  Careless* device = nullptr;
  std::unique_ptr<flashjit_engine> engine;

  CarelessEngine() {
    using namespace flashjit;
    auto made = std::make_unique<Careless>();
    device = made.get();
    const EngineOptions options{.use_cache = false};
    auto state =
        std::make_shared<EngineState>(options, EngineState::Parts{.device = std::move(made),
                                                                  .store = cache::open_store({}),
                                                                  .wisdom_file = {},
                                                                  .system_wisdom_file = {},
                                                                  .templates = embedded_templates(),
                                                                  .load_compiler = test::loader(script)});
    engine.reset(new flashjit_engine{state, EngineAccess::make(state), "fake", "fake"});
  }
};

TEST_CASE("memory that an engine did not allocate is not freed by it") {
  const CarelessEngine made;
  flashjit_engine* const engine = made.engine.get();
  Careless& device = *made.device;
  void* const foreign = device.allocate(64);
  CHECK(flashjit_free(engine, foreign) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(std::string(flashjit_last_error()).find("what flashjit_allocate gave") != std::string::npos);
  CHECK(device.released == 0);
  void* own = nullptr;
  REQUIRE(flashjit_allocate(engine, 64, &own) == FLASHJIT_OK);
  CHECK(flashjit_free(engine, own) == FLASHJIT_OK);
  CHECK(device.released == 1);
  CHECK(flashjit_free(engine, own) == FLASHJIT_INVALID_ARGUMENT);
  CHECK(device.released == 1);
  CHECK(flashjit_free(engine, nullptr) == FLASHJIT_OK);
  device.free(foreign);
}

TEST_CASE("an engine's end frees what nobody has freed") {
  CarelessEngine made;
  const auto state = made.engine->state;  // as a plan keeps it
  void* memory[2] = {};
  for (void*& one : memory) REQUIRE(flashjit_allocate(made.engine.get(), 64, &one) == FLASHJIT_OK);
  CHECK(flashjit_free(made.engine.get(), memory[0]) == FLASHJIT_OK);
  flashjit_engine_destroy(made.engine.release());
  CHECK(made.device->released == 2);
  CHECK(made.device->bytes_alive() == 0);
}

TEST_CASE("what a newer program asks beyond this library's struct is answered with zeros") {
  const CarelessEngine made;
  const flashjit_problem problem{.size = sizeof problem, .head_dim = 64};
  const flashjit_shape shape{.size = sizeof shape, .batch = 1, .heads = 1, .seqlen_q = 64, .seqlen_k = 64};
  flashjit_plan* plan = nullptr;
  REQUIRE(flashjit_plan_create(made.engine.get(), &problem, &shape, nullptr, &plan) == FLASHJIT_OK);
  struct Newer {
    flashjit_origin known;
    const char* more;
    std::size_t behind;
  } newer{.known = {.size = offsetof(Newer, behind)}, .more = "stale", .behind = 7};
  CHECK(flashjit_plan_origin(plan, &newer.known) == FLASHJIT_OK);
  CHECK(newer.known.kernels == 1);
  CHECK(newer.more == nullptr);
  CHECK(newer.behind == 7);
  for (const std::size_t size : {std::size_t{20}, std::size_t{1} << 17}) {
    newer.known.size = size;
    CHECK(flashjit_plan_origin(plan, &newer.known) == FLASHJIT_INVALID_ARGUMENT);
    CHECK(std::string(flashjit_last_error()).find("flashjit_origin.size is ") == 0);
  }
  flashjit_plan_destroy(plan);
}

TEST_CASE("a shortage of the host's memory is no bug in flashjit") {
  CarelessEngine made;
  made.script.on_compile = [] { throw std::bad_alloc(); };
  const flashjit_problem problem{.size = sizeof problem, .head_dim = 64};
  const flashjit_shape shape{.size = sizeof shape, .batch = 1, .heads = 1, .seqlen_q = 64, .seqlen_k = 64};
  CHECK(flashjit_prepare(made.engine.get(), &problem, &shape, nullptr) == FLASHJIT_DEVICE);
  CHECK(std::string(flashjit_last_error()) == "the host's memory ran out");
}
