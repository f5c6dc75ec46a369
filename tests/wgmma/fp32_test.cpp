// Family wgmma in fp32, where each number is three of bf16: how close it is to float64, and what it makes of
// numbers that bf16 cannot hold.
#include <doctest/doctest.h>

#include <string>
#include <tuple>

#include "tests/support/emulated_engine.hpp"
#include "tests/support/fp32_forward.hpp"

using namespace flashjit;
using flashjit::test::AttentionCase;
using flashjit::test::fp32_forward;
using flashjit::test::two_of;

namespace {

// The switches that fp32 does without have to be off.
std::string schedule_of(const std::string& tile, const char* level = "") {
  return "wgmma:" + tile + "op0pp0ov0p0" + level;
}

double ratio(const std::string& schedule, const AttentionCase& one) {
  return test::ratio(test::emulated_sm_90a(), schedule, one);
}

}  // namespace

TEST_CASE("all numbers of warpgroups, places of Q and odd sizes are as right as the textbook's sums") {
  struct Tile {
    const char *tile, *level;
    int widest;  // that it takes
  };
  for (const auto& [tile, level, widest] : {Tile{"m64n32s1qr0", "", 72},
                                            {"m128n32s2qr1", "pt1", 72},
                                            {"m128n32s1qr2", "", 72},
                                            {"m64n32s1qr0cl2", "", 72},
                                            {"m128n48s1qr2cl2", "", 72},
                                            {"m192n48s2qr2lz0", "", 64}}) {
    for (const AttentionCase& one : test::odd_sizes()) {
      if (one.problem.value_dim() <= widest) CHECK(ratio(schedule_of(tile, level), one) < 0.7);
    }
  }
}

TEST_CASE("heads of several panels") {
  for (const auto& [tile, level, dim, dim_v] : {std::tuple{"m64n32s1qr0", "pt1", 256, 256},
                                                {"m64n32s1qr0cl2", "", 256, 256},
                                                {"m64n48s1qr0cl2", "pt1", 192, 184},
                                                {"m128n64s1qr2cl2", "", 96, 128},
                                                {"m128n64s1qr2", "sp2", 256, 256},
                                                {"m128n32s2qr2", "sp2pt1", 224, 208},
                                                {"m64n64s1qr0", "sp2", 80, 256},
                                                {"m64n48s1qr0", "pt1", 136, 184},
                                                {"m128n32s1qr0", "pt1", 192, 128},
                                                {"m128n64s1qr2", "", 128, 128},
                                                {"m128n48s1qr2", "", 72, 96}}) {
    for (const bool causal : {false, true}) {
      CHECK(ratio(schedule_of(tile, level),
                  {.problem = fp32_forward(dim, causal, dim_v), .shape = two_of(2, 1, 140, 210)}) < 0.7);
    }
  }
}

TEST_CASE("columns shared out by two CTAs") {
  for (const char* tile : {"m64n32s2qr0", "m128n32s1qr1", "m128n48s2qr2lz0", "m192n48s2qr2"}) {
    for (const auto& [dim, dim_v, causal] : {std::tuple{32, 80, false}, {48, 48, true}, {80, 32, true}}) {
      for (const Shape& shape : {two_of(2, 1, 70, 130), two_of(3, 1, 200, 50), two_of(2, 2, 1, 64)}) {
        for (const test::Layout layout : {test::Layout::packed, test::Layout::strided}) {
          const AttentionCase one{
              .problem = fp32_forward(dim, causal, dim_v), .shape = shape, .layout = layout};
          CHECK(ratio(schedule_of(tile, "sp2"), one) < 0.7);
        }
      }
    }
  }
}

TEST_CASE("rows that see no key, and no keys at all") {
  for (const char* ctas : {"", "cl2", "sp2"}) {
    for (const Shape& shape : {two_of(2, 1, 150, 40), two_of(2, 1, 70, 0), two_of(1, 1, 0, 70)})
      static_cast<void>(
          ratio(schedule_of("m128n64s2qr1", ctas), {.problem = fp32_forward(64, true), .shape = shape}));
  }
}

TEST_CASE("one row a head, many seeds") {
  for (const int head_dim : {24, 64})
    test::check_many_seeds(test::emulated_sm_90a(), schedule_of("m64n64s1qr0"), head_dim, 20);
}

TEST_CASE("values near the ends of fp32, whose parts have its exponents") {
  for (const AttentionCase& one : test::near_the_ends()) CHECK(ratio(schedule_of("m128n64s1qr2"), one) < 0.7);
}

TEST_CASE("keys of score -infinity, some of a row's and all") {
  for (const AttentionCase& one : test::silent_keys())
    static_cast<void>(ratio(schedule_of("m64n32s2qr0"), one));
}

TEST_CASE("many keys that score alike: additions to their sum do not round alike") {
  CHECK(ratio(schedule_of("m64n64s2qr0"), test::keys_alike()) < 0.3);
}
