// Family simt's backward pass on the emulator, all checks on: every tile of the space, both ways to dQ, head
// dims, masks, heads that share keys, strides, sizes that are odd or nothing, and inputs that hurt.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/emulated_engine.hpp"
#include "tests/support/fp32_gradients.hpp"

using namespace flashjit;
using flashjit::autotune::InputKind;
using flashjit::test::AttentionCase;
using flashjit::test::fp32_gradients;
using flashjit::test::Gradients;
using flashjit::test::kRagged;
using flashjit::test::Layout;

namespace {

Engine& engine(const std::string& device) {
  static test::EmulatedEngine hopper = test::open_emulated_engine({.arch = "sm_90"});
  static test::EmulatedEngine turing = test::open_emulated_engine({.arch = "sm_75"});
  return device == "sm_75" ? turing.engine : hopper.engine;
}

void check(const std::string& schedule, const AttentionCase& one, const std::string& device = "sm_90") {
  CAPTURE(schedule);
  CAPTURE(describe(one));
  const bool deterministic = schedule.find("dq1") == std::string::npos;
  const Gradients::Result result = Gradients(one).run(engine(device), {.schedule = schedule}, deterministic);
  CHECK_MESSAGE(result.check.ok, result.check.message);
}

// Largest error over what the rule allows, of the gradient where that is most.
double ratio(const std::string& schedule, const AttentionCase& one) {
  const bool deterministic = schedule.find("dq1") == std::string::npos;
  const autotune::Check check =
      Gradients(one).run(engine("sm_90"), {.schedule = schedule}, deterministic).check;
  return check.max_error / check.allowed;
}

}  // namespace

TEST_CASE("every tile of the space") {
  for (const auto& [schedule, one] : test::tiles_of_space(Family::simt)) check(schedule, one);
}

TEST_CASE("head dims and masks") {
  bool causal = false;  // every other case, so that both ways have it, and half of the head dims
  for (const auto& [head_dim, head_dim_v] : std::vector<std::pair<int, int>>{
           {8, 8}, {40, 40}, {72, 72}, {64, 128}, {192, 128}, {8, 256}, {40, 8}}) {
    for (const char* schedule : {"simt-backward:m16n32w4", "simt-backward:m16n32w4dq1"}) {
      check(schedule, {.problem = fp32_gradients(head_dim, causal, head_dim_v), .shape = kRagged});
      causal = !causal;
    }
    causal = !causal;
  }
  check("simt-backward:m8n16w2", {.problem = fp32_gradients(256, true), .shape = kRagged}, "sm_75");
  check("simt-backward:m8n16w2dq1", {.problem = fp32_gradients(248, false), .shape = kRagged}, "sm_75");
}

TEST_CASE("layouts and inputs") {
  for (const AttentionCase& one : test::layouts_and_inputs()) {
    for (const char* schedule : {"simt-backward:m32n32w4", "simt-backward:m32n32w4dq1"}) check(schedule, one);
  }
}

TEST_CASE("sizes") {
  for (const AttentionCase& one : test::sizes()) {
    for (const char* schedule : {"simt-backward:m32n32w4", "simt-backward:m32n32w4dq1"}) check(schedule, one);
  }
}

TEST_CASE("a case of the grid that scores of one float got wrong on an H200") {
  for (const char* schedule : {"simt-backward:m8n16w2", "simt-backward:m8n16w2dq1"}) {
    CHECK(ratio(schedule, {.problem = fp32_gradients(24, true),
                           .shape = {.batch = 2, .heads = 2, .seqlen_q = 3, .seqlen_k = 799},
                           .layout = Layout::shared,
                           .seed = 215649703361066400u}) < 0.7);
  }
}

// The rule compares largest errors: the fewer rows and dims, the more luck it takes. 200 seeds each gave 0.56
// at most, and 5.4 with scores of one float.
TEST_CASE("few rows or few dims, many seeds") {
  struct Case {
    const char* schedule;
    int head_dim, heads, heads_kv, seqlen_q, seqlen_k;
    InputKind inputs;
  };
  const Case cases[] = {
      {"simt-backward:m8n16w2", 24, 2, 2, 3, 799, InputKind::normal},
      {"simt-backward:m8n16w2", 48, 2, 2, 3, 799, InputKind::growing},
      {"simt-backward:m8n8w2", 8, 3, 1, 65, 257, InputKind::late_giant},
      {"simt-backward:m64n32w4dq1", 8, 2, 2, 127, 129, InputKind::late_giant},
      {"simt-backward:m64n32w4", 16, 2, 2, 128, 128, InputKind::growing},
  };
  for (const Case& c : cases) {
    CAPTURE(c.schedule);
    CAPTURE(c.head_dim);
    double worst = 0;
    double sum = 0;
    constexpr int kSeeds = 20;
    for (int seed = 1; seed <= kSeeds; ++seed) {
      const double found = ratio(c.schedule, {.problem = fp32_gradients(c.head_dim, false),
                                              .shape = {.batch = 2,
                                                        .heads = c.heads,
                                                        .heads_kv = c.heads_kv,
                                                        .seqlen_q = c.seqlen_q,
                                                        .seqlen_k = c.seqlen_k},
                                              .inputs = c.inputs,
                                              .seed = static_cast<std::uint64_t>(seed)});
      worst = std::max(worst, found);
      sum += found;
    }
    CHECK(worst < 0.7);
    CHECK(sum / kSeeds < 0.3);  // 0.4 to 0.9 are what scores of one float give
  }
}

TEST_CASE("the same bits from run to run: all of two passes, dk and dv of one") {
  const Gradients gradients({.problem = fp32_gradients(64, true), .shape = kRagged});
  for (const bool two_passes : {true, false}) {
    const PlanOptions options{.schedule =
                                  two_passes ? "simt-backward:m32n32w4" : "simt-backward:m32n32w4dq1"};
    const Gradients::Result first = gradients.run(engine("sm_90"), options, two_passes);
    for (int repeat = 0; repeat < 3; ++repeat) {
      const Gradients::Result again = gradients.run(engine("sm_90"), options, two_passes);
      CHECK(again.dk.bytes == first.dk.bytes);
      CHECK(again.dv.bytes == first.dv.bytes);
      if (two_passes) CHECK(again.dq.bytes == first.dq.bytes);
    }
  }
}
