// Real kernels through the front door, on emulated GPUs: sizes, heads, layouts and inputs that hurt.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <map>

#include "tests/support/attention_case.hpp"
#include "tests/support/emulated_engine.hpp"

namespace flashjit::test {
namespace {

Engine& engine_of(const std::string& arch) {
  static std::map<std::string, EmulatedEngine> engines;
  auto found = engines.find(arch);
  if (found == engines.end()) found = engines.emplace(arch, open_emulated_engine({.arch = arch})).first;
  return found->second.engine;
}

void check(const std::string& arch, const AttentionCase& one, const PlanOptions& options = {}) {
  CAPTURE(arch);
  CAPTURE(describe(one));
  std::string schedule;
  const autotune::Check result = Attention(one).run(engine_of(arch), options, &schedule);
  CAPTURE(schedule);
  CAPTURE(result.max_error);
  CAPTURE(result.allowed);
  CHECK_MESSAGE(result.ok, result.message);
}

// Every seqlen is odd or tiny; causal rows that see nothing, more keys than queries, none of either.
const std::vector<Shape> kShapes = {
    {.batch = 2, .heads = 2, .seqlen_q = 65, .seqlen_k = 70},
    {.batch = 1, .heads = 4, .heads_kv = 2, .seqlen_q = 33, .seqlen_k = 129},
    {.batch = 1, .heads = 3, .heads_kv = 1, .seqlen_q = 130, .seqlen_k = 37},
    {.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 1, .seqlen_k = 200},
    {.batch = 1, .heads = 1, .seqlen_q = 5, .seqlen_k = 1},
    {.batch = 2, .heads = 1, .seqlen_q = 3, .seqlen_k = 0},
    {.batch = 1, .heads = 1, .seqlen_q = 0, .seqlen_k = 9},
    {.batch = 0, .heads = 1, .seqlen_q = 8, .seqlen_k = 8},
};

void check_all(const std::string& arch, DType dtype, int head_dim, int head_dim_v = 0) {
  std::uint64_t seed = 1;
  for (const bool causal : {false, true}) {
    for (const Shape& shape : kShapes) {
      const Problem problem{.dtype = dtype, .head_dim = head_dim, .head_dim_v = head_dim_v, .causal = causal};
      check(arch, {.problem = problem,
                   .shape = shape,
                   .layout = std::array{Layout::packed, Layout::strided, Layout::shared}[seed % 3],
                   .seed = seed});
      ++seed;
    }
  }
}

TEST_CASE("bf16 on sm_80") {
  check_all("sm_80", DType::bf16, 64);
}
TEST_CASE("fp16 on sm_75") {
  check_all("sm_75", DType::fp16, 64);
}
TEST_CASE("fp32 on sm_86") {
  check_all("sm_86", DType::fp32, 32);
}
TEST_CASE("bf16 on sm_90a") {
  check_all("sm_90a", DType::bf16, 128);
}
TEST_CASE("an odd head_dim, and another for v") {
  check_all("sm_89", DType::fp16, 40, 72);
}

TEST_CASE("inputs that hurt, and a scale of one's own") {
  using autotune::InputKind;
  const Shape shape{.batch = 1, .heads = 2, .seqlen_q = 40, .seqlen_k = 150};
  for (const InputKind kind :
       {InputKind::peaky, InputKind::growing, InputKind::late_giant, InputKind::crowd, InputKind::tiny}) {
    for (const char* arch : {"sm_80", "sm_90a"}) {
      check(arch, {.problem = {.dtype = DType::bf16, .head_dim = 64, .causal = true},
                   .shape = shape,
                   .inputs = kind});
    }
  }
  check("sm_80", {.problem = {.dtype = DType::bf16, .head_dim = 64}, .shape = shape, .scale = 0.03F});
  check("sm_80", {.problem = {.dtype = DType::fp32, .head_dim = 64}, .shape = shape, .scale = 1.5F});
}

TEST_CASE("keys of score -infinity, before any other and among them") {
  const Shape shape{.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 70, .seqlen_k = 300};
  for (const bool causal : {false, true}) {
    check("sm_80", {.problem = {.head_dim = 64, .causal = causal}, .shape = shape, .silent = 140});
    for (const char* schedule :
         {"simt:m16n32w2s2", "simt:m64n32w8s2", "simt:m128n64w4s2", "mma:m64n32w4s1kv1"}) {
      check("sm_80",
            {.problem = {.dtype = DType::fp32, .head_dim = 64, .causal = causal},
             .shape = shape,
             .silent = 140},
            {.schedule = schedule});
    }
  }
}

TEST_CASE("CTAs of mma that compute one tile after the other") {
  // Sixteen multiprocessors, each with a CTA: two tiles for some, then one for each and several for all; K
  // that ends inside a tile, at its end and before it begins.
  const PlanOptions options{.schedule = "mma:m64n64w4s1kv1p1"};
  for (const Shape& shape :
       std::vector<Shape>{{.batch = 1, .heads = 6, .heads_kv = 3, .seqlen_q = 200, .seqlen_k = 130},
                          {.batch = 2, .heads = 4, .heads_kv = 1, .seqlen_q = 65, .seqlen_k = 64},
                          {.batch = 1, .heads = 3, .heads_kv = 3, .seqlen_q = 1000, .seqlen_k = 5},
                          {.batch = 3, .heads = 4, .heads_kv = 2, .seqlen_q = 100, .seqlen_k = 0}}) {
    for (const Layout layout : {Layout::packed, Layout::strided}) {
      check("sm_87", {.problem = {.head_dim = 256}, .shape = shape, .layout = layout}, options);
    }
  }
  check("sm_87",
        {.problem = {.dtype = DType::fp16, .head_dim = 248, .head_dim_v = 200, .lse = false},
         .shape = {.batch = 1, .heads = 5, .seqlen_q = 290, .seqlen_k = 170},
         .inputs = autotune::InputKind::growing},
        options);
}

TEST_CASE("without an LSE") {
  Problem problem{.dtype = DType::bf16, .head_dim = 64};
  problem.lse = false;
  check("sm_80", {.problem = problem, .shape = kShapes[0]});
}

TEST_CASE("a pointer that is not of the device is called that") {
  Engine& engine = engine_of("sm_80");
  const Shape shape{.batch = 1, .heads = 1, .seqlen_q = 64, .seqlen_k = 64};
  const Plan plan = engine.plan({.dtype = DType::bf16, .head_dim = 64}, shape);
  const auto far = [](int tensor) { return reinterpret_cast<void*>(std::uintptr_t{0x10000} * (tensor + 1)); };
  try {
    plan.forward({.q = far(0), .k = far(1), .v = far(2), .o = far(3)}, nullptr);
    FAIL("it ran");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("the host's own memory is none of") != std::string::npos);
  }
}

TEST_CASE("one plan serves every shape") {
  Engine& engine = engine_of("sm_80");
  const Problem problem{.dtype = DType::bf16, .head_dim = 64, .causal = true};
  for (const Shape& shape : kShapes) {
    const AttentionCase one{.problem = problem, .shape = shape};
    CHECK_MESSAGE(Attention(one).run(engine, {.schedule = "mma:m64n32w4s2"}).ok, describe(one));
  }
}

}  // namespace
}  // namespace flashjit::test
