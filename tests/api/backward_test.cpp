// Real backward kernels through the front door, on an emulated GPU: sizes, heads, layouts, the Engine's pool,
// a tuning run and what it leaves. The families' own tests go further.
#include <doctest/doctest.h>

#include <array>

#include "tests/api/support.hpp"
#include "tests/support/gradient_case.hpp"

namespace flashjit::test {
namespace {

constexpr const char* kDevice = "emulated:sm_90a";

Problem problem_of(bool causal, bool deterministic = false) {
  return {.pass = Pass::backward,
          .dtype = DType::bf16,
          .head_dim = 64,
          .causal = causal,
          .deterministic = deterministic};
}

// Every seqlen is odd or tiny; rows that see nothing, no rows, no keys.
const std::vector<Shape> kShapes = {
    {.batch = 2, .heads = 2, .seqlen_q = 65, .seqlen_k = 70},
    {.batch = 1, .heads = 4, .heads_kv = 2, .seqlen_q = 33, .seqlen_k = 129},
    {.batch = 1, .heads = 3, .heads_kv = 1, .seqlen_q = 130, .seqlen_k = 37},
    {.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 1, .seqlen_k = 200},
    {.batch = 1, .heads = 1, .seqlen_q = 5, .seqlen_k = 1},
    {.batch = 2, .heads = 1, .seqlen_q = 3, .seqlen_k = 0},
    {.batch = 2, .heads = 2, .seqlen_q = 0, .seqlen_k = 9},
    {.batch = 0, .heads = 1, .seqlen_q = 8, .seqlen_k = 8},
};

TEST_CASE("gradients are right, deterministic or not") {
  EngineOptions engine_options;
  engine_options.device = kDevice;
  engine_options.use_cache = false;  // entries of earlier runs would hide a compiler's mistakes
  Engine engine(engine_options);
  std::uint64_t seed = 1;
  for (const bool causal : {false, true}) {
    for (const Shape& shape : kShapes) {
      const AttentionCase one{.problem = problem_of(causal),
                              .shape = shape,
                              .layout = std::array{Layout::packed, Layout::strided, Layout::shared}[seed % 3],
                              .seed = seed};
      ++seed;
      CAPTURE(describe(one));
      const Gradients gradients(one);
      const auto fast = gradients.run(engine, {}, false);
      CHECK_MESSAGE(fast.check.ok, fast.check.message);
      const auto first = gradients.run(engine, {}, true);
      CHECK_MESSAGE(first.check.ok, first.check.message);
      const auto second = gradients.run(engine, {}, true);
      CHECK(first.dq.bytes == second.dq.bytes);
      CHECK(first.dk.bytes == second.dk.bytes);
      CHECK(first.dv.bytes == second.dv.bytes);
    }
  }
}

TEST_CASE("a plan has several kernels, compiled at once, found again and tuned") {
  const Folder folder;
  EngineOptions options;
  options.device = kDevice;
  options.cache_dir = folder.path().string();
  options.on_message = [](std::string_view) {};
  options.tuning_budget = std::chrono::minutes(2);  // for a machine that does other things, too
  const Shape shape{.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 40, .seqlen_k = 50};
  {
    Engine engine(options);
    const Plan plan = engine.plan(problem_of(true, true), shape);
    CHECK(plan.origin().code.find("compiled in") == 0);
    REQUIRE(plan.kernels().size() >= 2);
    for (const KernelView& kernel : plan.kernels()) {
      CHECK(kernel.name.find(plan.kernel_name()) == 0);
      CHECK(kernel.source.find(kernel.name) != std::string_view::npos);
    }
    CHECK(plan.kernels()[0].name != plan.kernels()[1].name);
    CHECK(engine.plan(problem_of(true, true), shape).origin().code == "memory");
  }
  {
    Engine engine(options);
    CHECK(engine.plan(problem_of(true, true), shape).origin().code == "disk");
    const Plan tuned = engine.plan(problem_of(true, true), shape, {.tuning = Tuning::quick});
    CHECK(tuned.origin().choice == "wisdom (this GPU)");
    CHECK_MESSAGE(tuned.origin().note.empty(), tuned.origin().note);
  }
  Engine engine(options);
  CHECK(engine.plan(problem_of(true, true), shape).origin().choice == "wisdom (this GPU)");
  // Wisdom of deterministic gradients says nothing of others.
  CHECK(engine.plan(problem_of(true, false), shape).origin().choice != "wisdom (this GPU)");
}

}  // namespace
}  // namespace flashjit::test
