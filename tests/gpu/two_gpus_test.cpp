// Two GPUs in one process: an engine on each, in turns and at once, whichever context is current.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "runtime/cuda/context.hpp"
#include "runtime/cuda_device.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/found_or_skip.hpp"
#include "tests/support/gradient_case.hpp"

namespace flashjit::test {
namespace {

constexpr Shape kShape{.batch = 2, .heads = 4, .heads_kv = 2, .seqlen_q = 257, .seqlen_k = 515};

std::array<Engine, 2>& engines_or_skip() {
  static std::array<Engine, 2> engines = found_or_skip([] {
    const auto gpus = runtime::cuda_status().gpus.size();
    if (gpus < 2) {
      fmt::print("SKIPPED: this wants two GPUs, and {} is visible.\n", gpus);
      std::exit(77);
    }
    const auto open = [](const char* device) {
      return Engine(EngineOptions{.device = device, .use_cache = false});
    };
    return std::array{open("cuda:0"), open("cuda:1")};
  });
  return engines;
}

struct Case {
  Attention attention;
  PlanOptions options{};
};

// All three families (on Hopper). CTAs that share out keys keep counters beside their kernel.
const std::vector<Case>& cases() {
  const Shape decoding{.heads = 4, .heads_kv = 1, .seqlen_q = 3, .seqlen_k = 5000};
  const auto attention = [](const Problem& problem, const Shape& shape) {
    return Attention({.problem = problem, .shape = shape});
  };
  static const std::vector<Case> made{
      {attention({.head_dim = 128, .causal = true}, kShape)},
      {attention({.head_dim = 64}, decoding)},
      {attention({.dtype = DType::fp16, .head_dim = 40}, kShape), {.family = "mma"}},
      {attention({.dtype = DType::fp32, .head_dim = 64}, kShape)}};
  return made;
}

const Gradients& gradients() {
  static const Gradients made(
      {.problem = {.pass = Pass::backward, .head_dim = 64, .causal = true, .deterministic = true},
       .shape = kShape});
  return made;
}

bool same_bits(const Gradients::Result& a, const Gradients::Result& b) {
  return a.dq.bytes == b.dq.bytes && a.dk.bytes == b.dk.bytes && a.dv.bytes == b.dv.bytes;
}

// A caller whose thread works on that GPU.
class Current {
 public:
  explicit Current(int gpu)
      : context_(runtime::Context::open(fmt::format("cuda:{}", gpu))), scope_(*context_) {}

 private:
  std::shared_ptr<const runtime::Context> context_;
  runtime::ContextScope scope_;
};

TEST_CASE("engines of two GPUs in turns, whichever context is current") {
  std::array<Engine, 2>& engines = engines_or_skip();
  for (int current = 0; current < 2; ++current) {
    const Current here(current);
    for (const Case& one : cases()) {
      for (Engine& engine : engines) {
        CAPTURE(current);
        CAPTURE(engine.device_name());
        const autotune::Check check = one.attention.run(engine, one.options);
        CHECK_MESSAGE(check.ok, check.message);
      }
    }
    CHECK(Engine(EngineOptions{.use_cache = false}).device_name() == fmt::format("cuda:{}", current));
  }
}

TEST_CASE("engines of two GPUs at once, each from two threads") {
  std::array<Engine, 2>& engines = engines_or_skip();
  const Gradients::Result first = gradients().run(engines[0], {}, true);
  CHECK_MESSAGE(first.check.ok, first.check.message);
  std::array<std::string, 4> wrong;
  std::vector<std::thread> threads;
  for (std::size_t number = 0; number < wrong.size(); ++number) {
    threads.emplace_back([&, number] {
      for (std::size_t run = 0; run < 40 && wrong[number].empty(); ++run) {
        Engine& engine = engines[(number + run / 10) % 2];  // ten runs here, ten there
        const Case& one = cases()[run % cases().size()];
        const autotune::Check check = one.attention.run(engine, one.options);
        if (!check.ok) wrong[number] = check.message;
        const Gradients::Result again = gradients().run(engine, {}, true);
        if (!again.check.ok) wrong[number] = again.check.message;
        if (!same_bits(first, again)) wrong[number] += " other bits than the first GPU's first run";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& message : wrong) CHECK_MESSAGE(message.empty(), message);
}

TEST_CASE("a stream of the other GPU is refused, and harms nothing") {
  std::array<Engine, 2>& engines = engines_or_skip();
  const auto context = runtime::Context::open("cuda:1");
  const runtime::Driver& driver = context->driver();
  CUstream foreign = nullptr;
  {
    const runtime::ContextScope scope(*context);
    driver.check(driver.stream_create(&foreign, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  const Plan plan = engines[0].plan({.head_dim = 64}, kShape);
  const Buffer read = engines[0].allocate(1 << 20);  // more than any of the four wants
  const Buffer written = engines[0].allocate(1 << 20);
  const ForwardArgs args{.q = read.data(), .k = read.data(), .v = read.data(), .o = written.data()};
  try {
    plan.forward(args, foreign);
    FAIL("a stream of cuda:1 was taken by a plan of cuda:0");
  } catch (const Error& error) {
    CHECK_MESSAGE(contains(error.what(), "a stream belongs to the GPU it was made on"), error.message());
  }
  const autotune::Check check = cases()[0].attention.run(engines[0], {});
  CHECK_MESSAGE(check.ok, check.message);
  const runtime::ContextScope scope(*context);
  driver.check(driver.stream_destroy(foreign), "cuStreamDestroy");
}

}  // namespace
}  // namespace flashjit::test
