// Family mma in fp32, where each number is three of bf16: how close it is to float64, and what it makes of
// numbers that bf16 cannot hold.
#include <doctest/doctest.h>

#include <string>

#include "tests/support/attention_case.hpp"
#include "tests/support/emulated_engine.hpp"

using namespace flashjit;
using flashjit::autotune::InputKind;
using flashjit::test::Attention;
using flashjit::test::AttentionCase;
using flashjit::test::Layout;

namespace {

Engine& engine() {
  static test::EmulatedEngine opened = test::open_emulated_engine({.arch = "sm_80"});
  return opened.engine;
}

// Largest error over what the rule allows.
double ratio(const std::string& schedule, const AttentionCase& one) {
  const autotune::Check check = Attention(one).run(engine(), {.schedule = schedule});
  CHECK_MESSAGE(check.ok, describe(one), " ", schedule, ": ", check.message);
  return check.max_error / check.allowed;
}

Problem problem_of(int head_dim, bool causal, int head_dim_v = 0) {
  return {.dtype = DType::fp32, .head_dim = head_dim, .head_dim_v = head_dim_v, .causal = causal};
}

Shape shape_of(int heads, int heads_kv, int seqlen_q, int seqlen_k) {
  return {.batch = 2, .heads = heads, .heads_kv = heads_kv, .seqlen_q = seqlen_q, .seqlen_k = seqlen_k};
}

}  // namespace

TEST_CASE("all tiles and odd sizes are as right as the textbook's sums in fp32") {
  for (const char* schedule :
       {"mma:m16n16w1s1kv1", "mma:m32n32w2s1kv1", "mma:m64n32w4s1kv1c2", "mma:m128n64w8s1kv1lz0"}) {
    for (const bool causal : {false, true}) {
      for (const auto& [dim, dim_v] : {std::pair{24, 8}, {40, 72}, {56, 56}, {64, 64}, {72, 24}}) {
        for (const Shape& shape : {shape_of(2, 1, 70, 130), shape_of(3, 1, 33, 17), shape_of(2, 2, 1, 64)}) {
          for (const Layout layout : {Layout::packed, Layout::strided}) {
            CHECK(ratio(schedule,
                        {.problem = problem_of(dim, causal, dim_v), .shape = shape, .layout = layout}) < 0.7);
          }
        }
      }
    }
  }
}

// On an H200 300 seeds gave at most 0.91, and 0.20 to 0.29 in the mean. In heads of 8 and 16 dims three of
// 1,800 were wrong there: legal() refuses them.
TEST_CASE("one row a head, many seeds") {
  for (const int head_dim : {24, 40, 64, 128}) {
    for (const InputKind inputs : {InputKind::normal, InputKind::peaky, InputKind::growing}) {
      CAPTURE(head_dim);
      CAPTURE(std::string(to_string(inputs)));
      double sum = 0;
      constexpr int kSeeds = 25;
      for (int seed = 1; seed <= kSeeds; ++seed) {
        sum += ratio("mma:m16n16w1s1kv1", {.problem = problem_of(head_dim, false),
                                           .shape = shape_of(3, 1, 1, 129),
                                           .inputs = inputs,
                                           .seed = static_cast<std::uint64_t>(seed)});
      }
      CHECK(sum / kSeeds < 0.4);
    }
  }
}

TEST_CASE("values near the ends of fp32, whose parts have its exponents") {
  for (const int exponent : {120, -100}) {
    CAPTURE(exponent);
    CHECK(ratio("mma:m64n32w4s1kv1", {.problem = problem_of(64, false),
                                      .shape = shape_of(2, 1, 40, 90),
                                      .value_exponent = exponent}) < 0.7);
  }
}

TEST_CASE("keys of score -infinity, some of a row's and all") {
  for (const char* schedule : {"mma:m64n32w4s1kv1", "simt:m64n32w4s2"}) {
    for (const int silent : {50, 90})
      static_cast<void>(ratio(
          schedule, {.problem = problem_of(64, false), .shape = shape_of(2, 1, 40, 90), .silent = silent}));
  }
}
