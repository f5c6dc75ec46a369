// Engines and plans on a fake device: what is made once, what is passed over, what is refused.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <thread>

#include "tests/api/support.hpp"

namespace flashjit::test {
namespace {

TEST_CASE("a plan is made once and found again") {
  CompilerScript script;
  FakeEngine fake(script);
  const Plan first = fake.engine->plan(kProblem, kShape);
  CHECK(first.origin().code == "compiled in 412 ms");
  CHECK(first.origin().schedule.find(':') != std::string::npos);
  CHECK_FALSE(first.origin().choice.empty());
  CHECK(first.origin().note.empty());
  CHECK(first.kernel_name().find("flashjit_forward_") == 0);
  REQUIRE(first.kernels().size() == 1);
  CHECK(first.kernels()[0].name == first.kernel_name());
  CHECK(first.kernels()[0].source.find(first.kernel_name()) != std::string::npos);
  CHECK(first.problem() == kProblem);
  CHECK(first.shape() == kShape);

  const int compiles = script.compiles;
  const Plan second = fake.engine->plan(kProblem, kShape);
  CHECK(second.origin().code == "memory");
  CHECK(second.origin().schedule == first.origin().schedule);
  CHECK(script.compiles == compiles);
  CHECK(fake.device->loads() == 1);

  SUBCASE("head_dim_v 0 and head_dim are one question") {
    Problem spelled = kProblem;
    spelled.head_dim_v = kProblem.head_dim;
    CHECK(fake.engine->plan(spelled, kShape).origin().code == "memory");
  }
  SUBCASE("and so are problems that differ in what their pass does not look at") {
    Problem forward = kProblem;
    forward.deterministic = true;
    const Plan plan = fake.engine->plan(forward, kShape);
    CHECK(plan.origin().code == "memory");
    CHECK(plan.problem() == forward);
    Problem backward{.pass = Pass::backward, .head_dim = 64};
    fake.engine->prepare(backward, kShape);
    backward.lse = false;
    CHECK(fake.engine->plan(backward, kShape).origin().code == "memory");
    backward.deterministic = true;
    CHECK(fake.engine->plan(backward, kShape).kernel_name().find("_deterministic") != std::string::npos);
  }
  SUBCASE("another size of the same bucket is the same kernel with its own shape") {
    Shape shape = kShape;
    shape.seqlen_q = 131;
    const Plan third = fake.engine->plan(kProblem, shape);
    CHECK(third.shape().seqlen_q == 131);
    CHECK(fake.device->loads() == 1);
  }
  SUBCASE("another bucket with the same schedule loads nothing") {
    PlanOptions given;
    given.schedule = first.origin().schedule;
    Shape shape = kShape;
    shape.seqlen_q = shape.seqlen_k = 100'000;
    const Plan third = fake.engine->plan(kProblem, shape, given);
    CHECK(third.origin().choice == "given");
    CHECK(third.origin().code == "memory");
    CHECK(fake.device->loads() == 1);
  }
  SUBCASE("a plan outlives its engine") {
    Pointers pointers;
    fake.engine.reset();
    fake.state.reset();
    first.forward(pointers.args());
    CHECK(fake.device->launches().size() == 1);
  }
}

TEST_CASE("a family or a schedule that is asked for is used") {
  CompilerScript script;
  FakeEngine fake(script);
  Problem single = kProblem;
  single.dtype = DType::fp32;
  CHECK(fake.engine->plan(single, kShape, {.family = "simt"}).origin().schedule.find("simt:") == 0);
  CHECK(fake.engine->plan(kProblem, kShape, {.family = "mma"}).origin().schedule.find("mma:") == 0);
  const Plan given = fake.engine->plan(kProblem, kShape, {.schedule = "mma:m64n64w4s2"});
  CHECK(given.origin().schedule == "mma:m64n64w4s2");
  CHECK(given.origin().choice == "given");
}

TEST_CASE("a plan says which family was passed over, unless one was asked for") {
  CompilerScript script;
  FakeEngine fake(script, {}, "sm_90");
  const Plan chosen = fake.engine->plan(kProblem, kShape);
  CHECK(chosen.origin().note.find("wgmma needs sm_90a") != std::string::npos);
  CHECK(fake.engine->plan(kProblem, kShape, {.family = "mma"}).origin().note.empty());
  CHECK(fake.engine->plan(kProblem, kShape, {.schedule = chosen.origin().schedule}).origin().note.empty());
}

TEST_CASE("many threads on one Engine compile and load a kernel once") {
  CompilerScript script;
  script.on_compile = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  FakeEngine fake(script);
  constexpr int kThreads = 8;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  std::atomic<int> ready{0};
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      ++ready;
      while (ready < kThreads) std::this_thread::yield();
      Pointers pointers;
      for (int round = 0; round < 20; ++round) {
        Shape shape = kShape;
        shape.seqlen_q += i;
        const Plan plan = fake.engine->plan(kProblem, shape);
        plan.forward(pointers.args());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(script.compiles == 1);
  CHECK(fake.device->loads() == 1);
  CHECK(fake.device->launches().size() == kThreads * 20);
}

TEST_CASE("what the first of many throws, all of them throw, and the next one tries again") {
  CompilerScript script;
  std::atomic<bool> broken{true};
  script.on_compile = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (broken) throw Error(ErrorCode::compile_failed, "NVRTC said no");
  };
  FakeEngine fake(script);
  std::atomic<int> failed{0};
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      try {
        fake.engine->prepare(kProblem, kShape);
      } catch (const Error& error) {
        if (error.message() == "NVRTC said no") ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failed == kThreads);
  broken = false;
  CHECK(fake.engine->plan(kProblem, kShape).origin().code == "compiled in 412 ms");
}

TEST_CASE("a miss in a capture is refused and names prepare; what is ready is not") {
  CompilerScript script;
  FakeEngine fake(script);
  fake.device->captures = true;
  int captured = 0;
  PlanOptions in_stream;
  in_stream.stream = reinterpret_cast<Stream>(&captured);
  try {
    static_cast<void>(fake.engine->plan(kProblem, kShape, in_stream));
    FAIL("a plan was made in a capture");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::unsupported);
    CHECK(error.hint().find("Engine::prepare") != std::string::npos);
    CHECK(error.hint().find("options") != std::string::npos);
  }
  CHECK(script.compiles == 0);
  CHECK(script.loads == 0);
  // In no stream, a capture elsewhere is no hindrance.
  fake.engine->prepare(kProblem, kShape);
  Pointers pointers;
  fake.engine->plan(kProblem, kShape, in_stream).forward(pointers.args());
  CHECK(fake.device->launches().size() == 1);
}

TEST_CASE("copies are refused in a capture, whose graph would use the host's memory whenever it runs") {
  CompilerScript script;
  FakeEngine fake(script);
  const Buffer buffer = fake.engine->allocate(64);
  std::array<std::byte, 64> host{};
  fake.device->captures = true;
  int captured = 0;
  const auto stream = reinterpret_cast<Stream>(&captured);
  CHECK_THROWS_WITH_AS(fake.engine->upload(buffer, host.data(), 64, stream),
                       doctest::Contains("the stream of this upload is being captured"), Error);
  CHECK_THROWS_WITH_AS(fake.engine->download(host.data(), buffer, 64, stream),
                       doctest::Contains("the stream of this download is being captured"), Error);
  CHECK_NOTHROW(fake.engine->upload(buffer, host.data(), 0, stream));
  CHECK_THROWS_WITH_AS(fake.engine->synchronize(stream),
                       doctest::Contains("the stream of this synchronize is being captured"), Error);
  // The default stream, too, while a stream that waits for it is captured.
  CHECK_THROWS_WITH_AS(fake.engine->upload(buffer, host.data(), 64),
                       doctest::Contains("the stream of this upload is being captured"), Error);
  fake.device->captures = false;
  CHECK_NOTHROW(fake.engine->upload(buffer, host.data(), 64));
}

TEST_CASE("a schedule that spills is passed over, and the plan says so") {
  CompilerScript script;
  std::string spiller;
  script.resources = [&](const KernelSource& source) {
    runtime::Resources resources;
    if (spiller.empty()) spiller = source.entry;
    if (source.entry == spiller) resources.spill_stores = 48;
    return resources;
  };
  FakeEngine fake(script);
  const Plan plan = fake.engine->plan(kProblem, kShape);
  CHECK(plan.kernel_name() != spiller);
  CHECK(plan.origin().note.find("spills 48 bytes") != std::string::npos);
  CHECK(plan.origin().note.find("passed over") != std::string::npos);
  CHECK(script.compiles == 2);

  SUBCASE("but it is what was asked for") {
    script.resources = [](const KernelSource&) { return runtime::Resources{.spill_loads = 16}; };
    const Plan given = fake.engine->plan(kProblem, kShape, {.schedule = "mma:m32n32w2s2"});
    CHECK(given.origin().schedule == "mma:m32n32w2s2");
    CHECK(given.origin().note.find("spills 16 bytes") != std::string::npos);
  }
}

TEST_CASE("a cache directory is the same place after a chdir") {
  CompilerScript script;
  EngineOptions options;
  options.cache_dir = "some/where";
  const EngineState state(options, {.device = std::make_unique<FakeDevice>(),
                                    .store = cache::open_store({}),
                                    .wisdom_file = {},
                                    .system_wisdom_file = {},
                                    .templates = embedded_templates(),
                                    .load_compiler = loader(script)});
  CHECK(state.options().cache_dir == (std::filesystem::current_path() / "some/where").string());
}

TEST_CASE("a relative cache directory is refused in words where the working directory is gone") {
  const auto before = std::filesystem::current_path();
  {
    const Folder folder;
    std::filesystem::current_path(folder.path());
  }
  for (const bool use_cache : {true, false}) {
    CAPTURE(use_cache);
    EngineOptions options;
    options.device = "emulated:sm_80";
    options.cache_dir = "some/where";
    options.use_cache = use_cache;
    try {
      const EngineState state(options);
      FAIL("an engine was made");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::io);
      CHECK(error.message().find("cache_dir is \"some/where\"") == 0);
    }
  }
  std::filesystem::current_path(before);
}

TEST_CASE("buffers free themselves") {
  CompilerScript script;
  FakeEngine fake(script);
  const std::size_t before = fake.device->bytes_alive();
  {
    Buffer buffer = fake.engine->allocate(64);
    const std::string text = "sixteen letters!";
    fake.engine->upload(buffer, text.data(), text.size());
    std::string back(text.size(), ' ');
    fake.engine->download(back.data(), buffer, back.size());
    CHECK(back == text);
    Buffer moved = std::move(buffer);
    CHECK(moved.size() == 64);
    const Buffer none = fake.engine->allocate(0);
    CHECK(none.data() == nullptr);
    fake.engine->synchronize();
  }
  CHECK(fake.device->bytes_alive() == before);
}

}  // namespace
}  // namespace flashjit::test
