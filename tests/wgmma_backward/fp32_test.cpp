// Family wgmma's backward pass in fp32 on the emulator, all checks on: head dims and masks, heads that share
// keys, strides, sizes that are odd or nothing, and inputs that hurt.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/emulated_engine.hpp"
#include "tests/support/fp32_gradients.hpp"

using namespace flashjit;
using flashjit::test::AttentionCase;
using flashjit::test::emulated_sm_90a;
using flashjit::test::fp32_gradients;
using flashjit::test::Gradients;
using flashjit::test::kRagged;

namespace {

bool is_deterministic(const std::string& schedule) {
  return schedule.ends_with("dq0");
}

// Largest error over what the rule allows, of the gradient where that is most.
double ratio(const std::string& schedule, const AttentionCase& one) {
  CAPTURE(schedule);
  CAPTURE(describe(one));
  const autotune::Check check =
      Gradients(one).run(emulated_sm_90a(), {.schedule = schedule}, is_deterministic(schedule)).check;
  CHECK_MESSAGE(check.ok, check.message);
  return check.max_error / check.allowed;
}

// Both ways to dQ, one and two tiles of Q and dO in flight.
constexpr const char* kSchedules[] = {"wgmma-backward:m64n64s1", "wgmma-backward:m64n64s1dq0",
                                      "wgmma-backward:m64n64s2", "wgmma-backward:m64n64s2dq0"};

}  // namespace

TEST_CASE("every schedule of the space") {
  for (const auto& [schedule, one] : test::tiles_of_space(Family::wgmma)) ratio(schedule, one);
}

TEST_CASE("head dims and masks") {
  bool causal = false;
  for (const auto& [head_dim, head_dim_v] :
       std::vector<std::pair<int, int>>{{24, 8}, {40, 64}, {64, 40}, {56, 56}}) {
    for (const char* schedule : kSchedules) {
      ratio(schedule, {.problem = fp32_gradients(head_dim, causal, head_dim_v), .shape = kRagged});
      causal = !causal;
    }
    causal = !causal;
  }
  for (const auto& [head_dim, head_dim_v] :
       std::vector<std::pair<int, int>>{{72, 72}, {64, 128}, {128, 24}, {96, 104}, {128, 128}}) {
    for (const char* schedule : {"wgmma-backward:m64n64s1", "wgmma-backward:m64n64s1dq0"}) {
      ratio(schedule, {.problem = fp32_gradients(head_dim, causal, head_dim_v), .shape = kRagged});
      causal = !causal;
    }
    causal = !causal;
  }
}

TEST_CASE("layouts and inputs") {
  std::size_t i = 0;  // each case with another schedule
  for (const AttentionCase& one : test::layouts_and_inputs()) {
    ratio(kSchedules[i % 4], one);
    ratio(kSchedules[(i + 1) % 4], one);
    ++i;
  }
}

TEST_CASE("sizes") {
  std::size_t i = 0;
  for (const AttentionCase& one : test::sizes()) {
    ratio(kSchedules[i % 4], one);
    ratio(kSchedules[(i + 1) % 4], one);
    ++i;
  }
}

TEST_CASE("many steps: rings go round, and heads of a group follow each other") {
  const Shape shape{.batch = 1, .heads = 3, .heads_kv = 1, .seqlen_q = 330, .seqlen_k = 70};
  for (const char* schedule : kSchedules) {
    for (const bool causal : {false, true})
      CHECK(ratio(schedule, {.problem = fp32_gradients(32, causal), .shape = shape}) < 0.7);
  }
}

TEST_CASE("the same bits from run to run: all of two passes, dk and dv of one") {
  const Gradients gradients({.problem = fp32_gradients(64, true), .shape = kRagged});
  for (const std::string schedule : kSchedules) {
    const PlanOptions options{.schedule = schedule};
    const Gradients::Result first = gradients.run(emulated_sm_90a(), options, is_deterministic(schedule));
    const Gradients::Result again = gradients.run(emulated_sm_90a(), options, is_deterministic(schedule));
    CHECK(again.dk.bytes == first.dk.bytes);
    CHECK(again.dv.bytes == first.dv.bytes);
    if (is_deterministic(schedule)) CHECK(again.dq.bytes == first.dq.bytes);
  }
}

TEST_CASE("a key with all the weight weighs 1") {
  for (const char* schedule : {"wgmma-backward:m64n64s1", "wgmma-backward:m64n64s1dq0"}) {
    for (const int seed : {1, 2, 3}) ratio(schedule, test::one_key_in_a_crowd(120, seed));
  }
}

TEST_CASE("a row whose LSE is -infinity has no part in any gradient") {
  for (const bool causal : {false, true}) {
    const Gradients gradients = test::silent_rows(causal);
    for (const std::string schedule : {"wgmma-backward:m64n64s2", "wgmma-backward:m64n64s1dq0"}) {
      CAPTURE(schedule);
      const autotune::Check check = gradients.run(emulated_sm_90a(), {.schedule = schedule}, false).check;
      CHECK_MESSAGE(check.ok, check.message);
    }
  }
}

// delta is formed by mma, dP by wgmma: both add up the same products in the same order.
TEST_CASE("a single key gives a dQ and dK of exactly 0") {
  for (const std::string schedule : {"wgmma-backward:m64n64s1", "wgmma-backward:m64n64s1dq0"}) {
    const Gradients::Result result =
        Gradients(test::single_key(72))
            .run(emulated_sm_90a(), {.schedule = schedule}, is_deterministic(schedule));
    CHECK(result.check.ok);
    CHECK(test::all_zero(result.dq));
    CHECK(test::all_zero(result.dk));
  }
}

TEST_CASE("an infinity in q makes NaN of what it touches") {
  for (const std::string schedule : {"wgmma-backward:m64n64s2", "wgmma-backward:m64n64s1dq0"}) {
    CAPTURE(schedule);
    CHECK(test::spreads_infinite_rows(emulated_sm_90a(), schedule));
  }
}
