// Family wgmma in fp32, where each number is three of bf16: how close it is to float64, and what it makes of
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

// What a schedule's name says of the switches that fp32 does without.
constexpr const char* kWithout = "op0pp0ov0p0";

Engine& engine() {
  static test::EmulatedEngine opened = test::open_emulated_engine({.arch = "sm_90a"});
  return opened.engine;
}

// Largest error over what the rule allows.
double ratio(const std::string& tile, const AttentionCase& one, const char* level = "") {
  const std::string schedule = "wgmma:" + tile + kWithout + level;
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

TEST_CASE(
    "all numbers of warpgroups, places of Q and odd sizes are as right as the textbook's sums in fp32") {
  for (const char* tile : {"m64n32s1qr0", "m128n48s2qr1", "m128n32s1qr2", "m192n48s2qr2lz0"}) {
    for (const bool causal : {false, true}) {
      for (const auto& [dim, dim_v] : {std::pair{24, 8}, {40, 64}, {56, 56}, {64, 24}}) {
        for (const Shape& shape : {shape_of(2, 1, 70, 130), shape_of(3, 1, 200, 50), shape_of(2, 2, 1, 64)}) {
          for (const Layout layout : {Layout::packed, Layout::strided}) {
            CHECK(ratio(tile, {.problem = problem_of(dim, causal, dim_v), .shape = shape, .layout = layout}) <
                  0.7);
          }
        }
      }
    }
  }
}

TEST_CASE("heads of several panels") {
  for (const auto& [tile, level, dim, dim_v] : {std::tuple{"m64n16s1qr0", "pt1", 256, 256},
                                                {"m64n48s1qr0", "pt1", 136, 200},
                                                {"m128n32s1qr0", "pt1", 192, 128},
                                                {"m128n64s1qr2", "", 128, 128},
                                                {"m128n48s1qr2", "", 72, 96}}) {
    for (const bool causal : {false, true})
      CHECK(ratio(tile, {.problem = problem_of(dim, causal, dim_v), .shape = shape_of(2, 1, 140, 210)},
                  level) < 0.7);
  }
}

TEST_CASE("rows that see no key, and no keys at all") {
  for (const Shape& shape : {shape_of(2, 1, 150, 40), shape_of(2, 1, 70, 0), shape_of(1, 1, 0, 70)})
    static_cast<void>(ratio("m128n64s2qr1", {.problem = problem_of(64, true), .shape = shape}));
}

TEST_CASE("one row a head, many seeds") {
  for (const int head_dim : {24, 64}) {
    for (const InputKind inputs : {InputKind::normal, InputKind::peaky, InputKind::growing}) {
      CAPTURE(head_dim);
      CAPTURE(std::string(to_string(inputs)));
      double sum = 0;
      constexpr int kSeeds = 20;
      for (int seed = 1; seed <= kSeeds; ++seed) {
        sum += ratio("m64n64s1qr0", {.problem = problem_of(head_dim, false),
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
    CHECK(ratio("m128n64s1qr2", {.problem = problem_of(64, false),
                                 .shape = shape_of(2, 1, 40, 90),
                                 .value_exponent = exponent}) < 0.7);
  }
}

TEST_CASE("keys of score -infinity, some of a row's and all") {
  for (const int silent : {50, 90}) {
    static_cast<void>(
        ratio("m64n32s2qr0",
              {.problem = problem_of(64, false), .shape = shape_of(2, 1, 40, 90), .silent = silent}));
  }
}
