// What the model knows of gradients: by family wgmma, who shares out queries, and who stages dQ; in all, what
// few queries take beside many keys. And sizes that are too large for anyone.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "autotune/tuner.hpp"

using namespace flashjit;
using namespace flashjit::autotune;

TEST_CASE(
    "gradients: queries are shared out where keys are few or many heads share them, and not elsewhere") {
  const Target target = target_of("sm_90a");
  const auto best = [&](int head_dim, bool causal, const Shape& shape) {
    return std::get<WgmmaBackwardSchedule>(
        ranked_space({.pass = Pass::backward, .head_dim = head_dim, .causal = causal}, shape, target)
            .front()
            .schedule);
  };
  const auto shared = [](int batch, int heads, int heads_kv, int seqlen) {
    return Shape{
        .batch = batch, .heads = heads, .heads_kv = heads_kv, .seqlen_q = seqlen, .seqlen_k = seqlen};
  };
  // As timed, bench/results/h200-backward/parts.jsonl and staged-64.jsonl.
  CHECK(best(128, true, shared(1, 64, 8, 4096)).splits == 4);
  CHECK(best(128, true, shared(2, 28, 4, 4096)).splits == 8);  // seven
  CHECK(best(128, true, shared(1, 32, 4, 16384)).splits == 8);
  CHECK(best(128, true, shared(1, 64, 4, 4096)).splits == 8);
  CHECK(best(64, true, shared(1, 14, 2, 4096)).splits == 8);
  CHECK(best(128, true, shared(8, 32, 8, 2048)).splits == 1);
  CHECK(best(64, true, shared(4, 32, 8, 4096)).splits == 1);
  CHECK(best(40, false, {.batch = 8, .heads = 8, .seqlen_q = 4096, .seqlen_k = 77}).splits > 1);
  CHECK(best(128, false, shared(1, 4, 4, 4096)).splits == 1);
  // Rather than share out all tiles, divide the last ones (last-tiles.jsonl).
  CHECK(best(128, false, {.batch = 1, .heads = 40, .seqlen_q = 32760, .seqlen_k = 512}).splits == 1);
  CHECK(best(128, false, shared(1, 5, 5, 4096)).splits == 1);
  // dQ is staged where tiles are long.
  CHECK(best(128, true, shared(1, 64, 8, 4096)).staged == 1);
  CHECK(best(128, true, shared(8, 32, 8, 2048)).staged == 1);
  CHECK(best(96, true, shared(2, 32, 8, 4096)).staged == 1);
  CHECK(best(128, true, shared(16, 16, 16, 1024)).staged == 0);
  CHECK(best(72, false, shared(16, 16, 16, 729)).staged == 0);
}

TEST_CASE("fp32 gradients of few queries beside many keys take whole tiles, under a mask as without one") {
  for (const char* arch : {"sm_75", "sm_80", "sm_90a"}) {
    for (const int head_dim : {40, 64, 128}) {
      for (const int queries : {16, 33, 48}) {
        CAPTURE(std::string(arch));
        CAPTURE(head_dim);
        CAPTURE(queries);
        const Shape shape{.batch = 1, .heads = 8, .seqlen_q = queries, .seqlen_k = 32768};
        Problem problem{.pass = Pass::backward, .dtype = DType::fp32, .head_dim = head_dim};
        const Schedule full = ranked_space(problem, shape, target_of(arch)).front().schedule;
        problem.causal = true;
        CHECK(to_string(ranked_space(problem, shape, target_of(arch)).front().schedule) == to_string(full));
      }
    }
  }
}

TEST_CASE("16-bit gradients of few queries beside many keys take about as long under a mask as without one") {
  for (const char* arch : {"sm_80", "sm_86", "sm_120"}) {
    for (const int queries : {16, 64}) {
      CAPTURE(std::string(arch));
      CAPTURE(queries);
      const Shape shape{.batch = 1, .heads = 8, .seqlen_q = queries, .seqlen_k = 32768};
      const auto expected = [&](bool causal) {
        return predict({.pass = Pass::backward, .head_dim = 64, .causal = causal}, shape,
                       parse_schedule("mma-backward:m64n128w8s2dq1"), target_of(arch));
      };
      CHECK(expected(true) / expected(false) == doctest::Approx(1).epsilon(0.04));
    }
  }
}

TEST_CASE("predictions are positive and finite for sizes that no launch may have") {
  constexpr int kMost = std::numeric_limits<int>::max();
  for (const Shape& shape :
       {Shape{.batch = kMost, .heads = kMost, .seqlen_q = 1000, .seqlen_k = 1000},
        Shape{.batch = 1 << 22, .heads = 1 << 22, .seqlen_q = 1000, .seqlen_k = 1 << 27}}) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      for (const bool causal : {false, true}) {
        const Problem problem{.pass = pass, .head_dim = 56, .causal = causal};
        for (const Candidate& candidate : ranked_space(problem, shape, target_of("sm_90a"))) {
          if (!candidate.pruned.empty()) continue;
          CAPTURE(to_string(candidate.schedule));
          CHECK(std::isfinite(candidate.predicted_ms));
          CHECK(candidate.predicted_ms > 0);
        }
      }
    }
  }
}
