// Family mma's backward pass in fp32 on the emulator, all checks on: every tile of the space, head dims,
// masks, heads that share keys, strides, sizes that are odd or nothing, and inputs that hurt.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/emulated_engine.hpp"
#include "tests/support/fp32_gradients.hpp"

using namespace flashjit;
using flashjit::autotune::InputKind;
using flashjit::test::AttentionCase;
using flashjit::test::fp32_gradients;
using flashjit::test::Gradients;
using flashjit::test::kRagged;

namespace {

Engine& engine(const std::string& device) {
  static test::EmulatedEngine hopper = test::open_emulated_engine({.arch = "sm_90"});
  static test::EmulatedEngine ampere = test::open_emulated_engine({.arch = "sm_80"});
  static test::EmulatedEngine small = test::open_emulated_engine({.arch = "sm_86"});
  return device == "sm_80" ? ampere.engine : device == "sm_86" ? small.engine : hopper.engine;
}

// Largest error over what the rule allows, of the gradient where that is most.
double ratio(const std::string& schedule, const AttentionCase& one, const std::string& device = "sm_90") {
  CAPTURE(schedule);
  CAPTURE(describe(one));
  const bool deterministic = schedule.find("dq1") == std::string::npos;
  const autotune::Check check =
      Gradients(one).run(engine(device), {.schedule = schedule}, deterministic).check;
  CHECK_MESSAGE(check.ok, check.message);
  return check.max_error / check.allowed;
}

// Both ways to dQ, and keys that warps share.
constexpr const char* kSchedules[] = {"mma-backward:m32n32w4dq1", "mma-backward:m16n16w2",
                                      "mma-backward:m32n32w8sp2dq1", "mma-backward:m32n32w8sp2"};

}  // namespace

TEST_CASE("every tile of the space") {
  for (const auto& [schedule, one] : test::tiles_of_space(Family::mma)) ratio(schedule, one);
}

TEST_CASE("head dims and masks") {
  bool causal = false;  // every other case, so that each schedule has it, and half of the head dims
  const auto check = [&](const char* schedule, int head_dim, int head_dim_v) {
    ratio(schedule, {.problem = fp32_gradients(head_dim, causal, head_dim_v), .shape = kRagged});
    causal = !causal;
  };
  for (const auto& [head_dim, head_dim_v] :
       std::vector<std::pair<int, int>>{{24, 8}, {40, 40}, {72, 72}, {64, 104}, {40, 8}}) {
    for (const char* schedule : kSchedules) check(schedule, head_dim, head_dim_v);
    causal = !causal;
  }
  for (const auto& [head_dim, head_dim_v] :
       std::vector<std::pair<int, int>>{{64, 128}, {192, 128}, {24, 208}, {136, 136}}) {
    for (const char* schedule : {"mma-backward:m32n32w8sp2dq1", "mma-backward:m32n32w8sp2"})
      check(schedule, head_dim, head_dim_v);
    causal = !causal;
  }
  ratio("mma-backward:m32n32w8sp2dq1", {.problem = fp32_gradients(24, true, 256), .shape = kRagged});
  ratio("mma-backward:m16n32w4dq1", {.problem = fp32_gradients(144, true), .shape = kRagged}, "sm_80");
  ratio("mma-backward:m32n32w8sp2dq1", {.problem = fp32_gradients(160, false), .shape = kRagged}, "sm_80");
  // Six, three and two warps own the rows of dQ.
  ratio("mma-backward:m32n32w8sp2", {.problem = fp32_gradients(160, true), .shape = kRagged});
  ratio("mma-backward:m32n32w8sp2", {.problem = fp32_gradients(176, true), .shape = kRagged}, "sm_80");
  ratio("mma-backward:m16n32w4", {.problem = fp32_gradients(144, false), .shape = kRagged}, "sm_86");
}

TEST_CASE("layouts and inputs") {
  for (const AttentionCase& one : test::layouts_and_inputs()) {
    for (const char* schedule : kSchedules) ratio(schedule, one);
  }
}

TEST_CASE("sizes") {
  for (const AttentionCase& one : test::sizes()) {
    for (const char* schedule : kSchedules) ratio(schedule, one);
  }
}

// The rule compares largest errors: the fewer rows, the more luck it takes. Below 16 rows plans take family
// simt's small tiles, which keep S in two floats.
TEST_CASE("many seeds") {
  struct Case {
    const char* schedule;
    int head_dim, heads, heads_kv, seqlen_q, seqlen_k;
    InputKind inputs;
  };
  const Case cases[] = {
      {"mma-backward:m32n32w4dq1", 24, 3, 1, 65, 257, InputKind::late_giant},
      {"mma-backward:m32n32w8sp2dq1", 24, 2, 2, 127, 129, InputKind::late_giant},
      {"mma-backward:m32n32w4dq1", 32, 2, 2, 128, 128, InputKind::normal},
      {"mma-backward:m16n32w4dq1", 64, 2, 2, 128, 128, InputKind::growing},
      {"mma-backward:m32n64w8dq1", 128, 2, 1, 70, 200, InputKind::peaky},
  };
  for (const Case& c : cases) {
    CAPTURE(c.schedule);
    CAPTURE(c.head_dim);
    double sum = 0;
    constexpr int kSeeds = 10;
    for (int seed = 1; seed <= kSeeds; ++seed) {
      sum += ratio(c.schedule, {.problem = fp32_gradients(c.head_dim, false),
                                .shape = {.batch = 2,
                                          .heads = c.heads,
                                          .heads_kv = c.heads_kv,
                                          .seqlen_q = c.seqlen_q,
                                          .seqlen_k = c.seqlen_k},
                                .inputs = c.inputs,
                                .seed = static_cast<std::uint64_t>(seed)});
    }
    CHECK(sum / kSeeds < 0.4);
  }
}

TEST_CASE("the same bits from run to run: all of two passes, dk and dv of one") {
  const Gradients gradients({.problem = fp32_gradients(64, true), .shape = kRagged});
  for (const std::string schedule : kSchedules) {
    const bool deterministic = schedule.find("dq1") == std::string::npos;
    const PlanOptions options{.schedule = schedule};
    const Gradients::Result first = gradients.run(engine("sm_90"), options, deterministic);
    for (int repeat = 0; repeat < 2; ++repeat) {
      const Gradients::Result again = gradients.run(engine("sm_90"), options, deterministic);
      CHECK(again.dk.bytes == first.dk.bytes);
      CHECK(again.dv.bytes == first.dv.bytes);
      if (deterministic) CHECK(again.dq.bytes == first.dq.bytes);
    }
  }
}

TEST_CASE("a key with all the weight weighs 1") {
  for (const char* schedule : {"mma-backward:m32n32w8sp2dq1", "mma-backward:m32n32w8sp2"}) {
    for (const int seed : {1, 2, 3, 4, 5}) ratio(schedule, test::one_key_in_a_crowd(200, seed));
  }
}

TEST_CASE("a row whose LSE is -infinity has no part in any gradient") {
  for (const bool causal : {false, true}) {
    const Gradients gradients = test::silent_rows(causal);
    for (const std::string schedule :
         {"mma-backward:m32n32w4dq1", "mma-backward:m16n16w2", "mma-backward:m32n32w8sp2dq1",
          "simt-backward:m32n32w4", "simt-backward:m16n16w4dq1"}) {
      CAPTURE(schedule);
      const autotune::Check check = gradients.run(engine("sm_90"), {.schedule = schedule}, false).check;
      CHECK_MESSAGE(check.ok, check.message);
    }
  }
}

// delta is formed by the products that form dP, in either kernel.
TEST_CASE("a single key gives a dQ and dK of exactly 0") {
  for (const std::string schedule : {"mma-backward:m32n32w4dq1", "mma-backward:m32n32w4"}) {
    const Gradients::Result result =
        Gradients(test::single_key(72))
            .run(engine("sm_90"), {.schedule = schedule}, schedule.find("dq1") == std::string::npos);
    CHECK(result.check.ok);
    CHECK(test::all_zero(result.dq));
    CHECK(test::all_zero(result.dk));
  }
}

TEST_CASE("an infinity in q makes NaN of what it touches") {
  for (const std::string schedule : {"mma-backward:m32n32w4dq1", "mma-backward:m32n32w4"}) {
    CAPTURE(schedule);
    CHECK(test::spreads_infinite_rows(engine("sm_90"), schedule));
  }
}
