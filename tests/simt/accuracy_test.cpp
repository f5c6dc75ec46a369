// How close family simt's forward pass is to float64, where the plain computation happens to be close: few
// rows and scores that grow large. The rule compares largest errors, so that the fewer rows, the more luck it
// takes.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "tests/support/attention_case.hpp"
#include "tests/support/emulated_engine.hpp"
#include "tests/support/fp32_forward.hpp"

using namespace flashjit;
using flashjit::autotune::InputKind;
using flashjit::test::Attention;
using flashjit::test::AttentionCase;
using flashjit::test::fp32_forward;
using flashjit::test::Layout;
using flashjit::test::two_of;

namespace {

Engine& engine() {
  static test::EmulatedEngine opened = test::open_emulated_engine({.arch = "sm_90"});
  return opened.engine;
}

// Largest error over what the rule allows.
double ratio(const std::string& schedule, const AttentionCase& one) {
  const autotune::Check check = Attention(one).run(engine(), {.schedule = schedule});
  return check.max_error / check.allowed;
}

}  // namespace

TEST_CASE("cases of the grid that sums over all of head_dim got wrong on an H200") {
  struct Case {
    const char* schedule;
    AttentionCase one;
  };
  const Case cases[] = {
      {"simt:m16n32w2s2",
       {fp32_forward(112, true),
        two_of(3, 1, 1, 129),
        Layout::strided,
        InputKind::peaky,
        {},
        13101579866087038263u}},
      {"simt:m16n16w2s2",
       {fp32_forward(192, true, 128),
        two_of(4, 2, 1, 129),
        Layout::shared,
        InputKind::peaky,
        {},
        14600149190943612383u}},
      {"simt:m16n64w2s2",
       {fp32_forward(32, true),
        two_of(4, 2, 191, 255),
        Layout::packed,
        InputKind::late_giant,
        {},
        7550566876486910607u}},
      {"simt:m16n64w2s1",
       {fp32_forward(240, false),
        two_of(2, 2, 113, 203),
        Layout::shared,
        InputKind::normal,
        {},
        1770593425914495522u}},
      {"simt:m16n32w2s2",
       {fp32_forward(216, true),
        two_of(3, 1, 191, 255),
        Layout::packed,
        InputKind::normal,
        {},
        17987604504980039738u}},
      {"simt:m16n32w2s2",
       {fp32_forward(128, true),
        two_of(4, 2, 513, 17),
        Layout::strided,
        InputKind::growing,
        {},
        10826646162253349585u}},
      {"simt:m16n32w2s2",
       {fp32_forward(128, true),
        two_of(2, 2, 127, 129),
        Layout::packed,
        InputKind::peaky,
        {},
        9796016884534697093u}},
      // Of 8 dims, which one block of 8 would round as one sum.
      {"simt:m16n64w2s2",
       {fp32_forward(8, true),
        two_of(4, 2, 1, 129),
        Layout::shared,
        InputKind::growing,
        {},
        8619294904949017937u}},
  };
  for (const Case& c : cases) {
    CAPTURE(describe(c.one));
    CHECK(ratio(c.schedule, c.one) < 0.8);
  }
}

// 300 seeds each gave at most 0.55, but for d40 peaky: 0.91. The rule is 1.
TEST_CASE("one row a head, many seeds") {
  for (const int head_dim : {40, 64, 128, 216}) {
    for (const InputKind inputs : {InputKind::normal, InputKind::peaky}) {
      CAPTURE(head_dim);
      CAPTURE(std::string(to_string(inputs)));
      double worst = 0;
      double sum = 0;
      constexpr int kSeeds = 25;
      for (int seed = 1; seed <= kSeeds; ++seed) {
        const double found = ratio("simt:m16n16w2s2", {.problem = fp32_forward(head_dim, false),
                                                       .shape = two_of(3, 1, 1, 129),
                                                       .inputs = inputs,
                                                       .seed = static_cast<std::uint64_t>(seed)});
        worst = std::max(worst, found);
        sum += found;
      }
      CHECK(worst < (head_dim == 40 && inputs == InputKind::peaky ? 1.0 : 0.8));
      CHECK(sum / kSeeds < 0.3);  // 0.5 is what sums over all of head_dim give
    }
  }
}

// These seeds gave 0.38 at d8 and 0.34 at d16; one block of 8, or two, 0.5 to 0.6 in the median of 100 seeds,
// and a tenth above 1.
TEST_CASE("one row of a narrow head, growing scores, many seeds") {
  for (const int head_dim : {8, 16}) {
    CAPTURE(head_dim);
    double sum = 0;
    constexpr int kSeeds = 50;
    for (int seed = 1; seed <= kSeeds; ++seed) {
      sum += ratio("simt:m16n64w2s2", {.problem = fp32_forward(head_dim, true),
                                       .shape = two_of(4, 2, 1, 129),
                                       .inputs = InputKind::growing,
                                       .seed = static_cast<std::uint64_t>(seed)});
    }
    CHECK(sum / kSeeds < 0.45);
  }
}
