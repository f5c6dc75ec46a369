// Family simt's backward pass on the emulator, all checks on: every tile of the space, both ways to dQ, head
// dims, masks, heads that share keys, strides, sizes that are odd or nothing, and inputs that hurt.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <iostream>
#include <string>
#include <vector>

#include "autotune/tune.hpp"
#include "runtime/compile.hpp"
#include "tests/support/gradient_case.hpp"

using namespace flashjit;
using flashjit::autotune::InputKind;
using flashjit::test::AttentionCase;
using flashjit::test::Gradients;
using flashjit::test::Layout;

namespace {

Engine& engine(const std::string& device) {
  static Engine hopper{EngineOptions{.device = "emulated:sm_90", .use_cache = false}};
  static Engine turing{EngineOptions{.device = "emulated:sm_75", .use_cache = false}};
  return device == "sm_75" ? turing : hopper;
}

Problem problem_of(int head_dim, bool causal, int head_dim_v = 0) {
  return {.pass = Pass::backward,
          .dtype = DType::fp32,
          .head_dim = head_dim,
          .head_dim_v = head_dim_v,
          .causal = causal};
}

void check(const std::string& schedule, const AttentionCase& one, const std::string& device = "sm_90") {
  CAPTURE(schedule);
  CAPTURE(describe(one));
  const bool deterministic = schedule.find("dq1") == std::string::npos;
  const Gradients::Result result = Gradients(one).run(engine(device), {.schedule = schedule}, deterministic);
  CHECK_MESSAGE(result.check.ok, result.check.message);
}

// Several tiles either way, ragged ends, rows before the first key's diagonal.
constexpr Shape kRagged{.batch = 2, .heads = 4, .heads_kv = 2, .seqlen_q = 75, .seqlen_k = 101};

}  // namespace

TEST_CASE("every tile of the space") {
  for (const int head_dim : {24, 64, 128}) {
    const Problem problem = problem_of(head_dim, true);
    const Shape shape{.heads = 2, .heads_kv = 1, .seqlen_q = 75, .seqlen_k = 101};
    for (const autotune::Candidate& candidate : autotune::search_space(problem, target_of("sm_90"))) {
      if (candidate.pruned.empty())
        check(to_string(candidate.schedule), {.problem = problem, .shape = shape});
    }
  }
}

TEST_CASE("head dims and masks") {
  for (const bool causal : {false, true}) {
    for (const auto& [head_dim, head_dim_v] : std::vector<std::pair<int, int>>{
             {8, 8}, {40, 40}, {72, 72}, {64, 128}, {192, 128}, {8, 256}, {40, 8}}) {
      for (const char* schedule : {"simt-backward:m16n32w4", "simt-backward:m16n32w4dq1"})
        check(schedule, {.problem = problem_of(head_dim, causal, head_dim_v), .shape = kRagged});
    }
  }
  check("simt-backward:m8n16w2", {.problem = problem_of(256, true), .shape = kRagged}, "sm_75");
  check("simt-backward:m8n16w2dq1", {.problem = problem_of(248, false), .shape = kRagged}, "sm_75");
}

TEST_CASE("layouts and inputs") {
  for (const Layout layout : {Layout::strided, Layout::shared}) {
    for (const InputKind inputs :
         {InputKind::normal, InputKind::peaky, InputKind::growing, InputKind::late_giant, InputKind::tiny}) {
      for (const char* schedule : {"simt-backward:m32n32w4", "simt-backward:m32n32w4dq1"}) {
        check(schedule,
              {.problem = problem_of(64, true), .shape = kRagged, .layout = layout, .inputs = inputs});
      }
    }
  }
}

TEST_CASE("sizes") {
  for (const auto& [seqlen_q, seqlen_k] : std::vector<std::pair<int, int>>{
           {1, 1}, {1, 129}, {129, 1}, {0, 5}, {5, 0}, {0, 0}, {32, 32}, {200, 60}, {3, 150}, {130, 17}}) {
    for (const bool causal : {false, true}) {
      for (const char* schedule : {"simt-backward:m32n32w4", "simt-backward:m32n32w4dq1"}) {
        check(schedule,
              {.problem = problem_of(32, causal),
               .shape = {.batch = 2, .heads = 3, .heads_kv = 1, .seqlen_q = seqlen_q, .seqlen_k = seqlen_k}});
      }
    }
  }
}

TEST_CASE("two passes give the same bits in whatever order CTAs run") {
  const AttentionCase one{.problem = problem_of(64, true), .shape = kRagged};
  const Gradients gradients(one);
  std::vector<Gradients::Result> results;
  for (const int seed : {1, 2, 3}) {
    Engine shuffled{
        EngineOptions{.device = "emulated:sm_90:seed=" + std::to_string(seed), .use_cache = false}};
    results.push_back(gradients.run(shuffled, {.schedule = "simt-backward:m32n32w4"}, true));
    CHECK(results.back().dq.bytes == results.front().dq.bytes);
    CHECK(results.back().dk.bytes == results.front().dk.bytes);
    CHECK(results.back().dv.bytes == results.front().dv.bytes);
  }
}

int main(int argc, char** argv) {
  try {
    (void)runtime::load_nvrtc();
  } catch (const Error& error) {
    std::cerr << "SKIPPED: kernels cannot be compiled here.\n" << error.what() << "\n";
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
