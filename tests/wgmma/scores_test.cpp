// Family wgmma on the emulator: rows that see no key, and scores that make the optimistic softmax wrong, a
// little (shrink) and beyond recovery (recompute).
#include <doctest/doctest.h>

#include <vector>

#include "autotune/inputs.hpp"
#include "tests/support/attention_case.hpp"
#include "tests/support/emulated_engine.hpp"
#include "tests/wgmma/emulated_check.hpp"

using namespace flashjit;
using flashjit::autotune::InputKind;
using flashjit::test::Attention;
using flashjit::test::AttentionCase;
using flashjit::test::check;

namespace {

constexpr Problem kD128{.head_dim = 128};
constexpr Problem kD128Causal{.head_dim = 128, .causal = true};

}  // namespace

TEST_CASE("ordinary scores lose no block: none is computed again") {
  auto [counted, device] = test::open_emulated_engine({.arch = "sm_90a", .counts = true});
  const Problem causal{.head_dim = 64, .causal = true};
  for (const char* schedule : {"wgmma:m64n64s2pp0p0sp2", "wgmma:m128n64s3p0sp3", "wgmma:m128n64s2p2"}) {
    for (const int keys : {512, 516, 540, 577}) {
      const AttentionCase one{.problem = causal,
                              .shape = {.batch = 1, .heads = 1, .seqlen_q = 64, .seqlen_k = keys}};
      CAPTURE(schedule);
      CAPTURE(describe(one));
      const autotune::Check result = Attention(one).run(counted, {.schedule = schedule});
      CHECK_MESSAGE(result.ok, result.message);
    }
  }
  for (const auto& opcode : device->profile().by_opcode) CHECK(opcode.first.rfind("mma.sync", 0) != 0);
}

TEST_CASE("no keys, one key, rows that see none") {
  for (const Shape& shape : std::vector<Shape>{{.heads = 2, .seqlen_q = 65, .seqlen_k = 0},
                                               {.heads = 2, .seqlen_q = 1, .seqlen_k = 1},
                                               {.heads = 2, .seqlen_q = 300, .seqlen_k = 77},
                                               {.heads = 2, .seqlen_q = 64, .seqlen_k = 383}}) {
    check("wgmma:m128n128s2p2", {.problem = kD128Causal, .shape = shape});
    check("wgmma:m128n128s2", {.problem = kD128, .shape = shape});
  }
}

TEST_CASE("keys of score -infinity, before any other and among them") {
  for (const char* schedule :
       {"wgmma:m128n64s2", "wgmma:m128n64s2op0", "wgmma:m128n64s2op0lz0", "wgmma:m128n64s2pp0ov0"}) {
    for (const Problem& problem : {kD128, kD128Causal}) {
      check(schedule,
            {.problem = problem, .shape = {.heads = 2, .seqlen_q = 130, .seqlen_k = 400}, .silent = 200});
    }
  }
}

TEST_CASE("values far from one: a shift may lie 2^40 above the scores, or exponentials grow to 2^14") {
  const Shape shape{.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 130, .seqlen_k = 500};
  for (const int exponent : {-90, 100}) {
    for (const InputKind inputs : {InputKind::normal, InputKind::growing, InputKind::late_giant}) {
      check("wgmma:m128n64s2",
            {.problem = kD128, .shape = shape, .inputs = inputs, .value_exponent = exponent});
      check("wgmma:m128n64s2p2",
            {.problem = kD128Causal, .shape = shape, .inputs = inputs, .value_exponent = exponent});
    }
  }
}

TEST_CASE("scores that outgrow what the optimist expects") {
  const Shape shape{.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 130, .seqlen_k = 500};
  for (const InputKind inputs :
       {InputKind::peaky, InputKind::growing, InputKind::late_giant, InputKind::tiny}) {
    check("wgmma:m128n64s2", {.problem = kD128, .shape = shape, .inputs = inputs});
    check("wgmma:m128n64s2pp0ov0p2", {.problem = kD128Causal, .shape = shape, .inputs = inputs});
    check("wgmma:m128n64s2",
          {.problem = {.dtype = DType::fp16, .head_dim = 72}, .shape = shape, .inputs = inputs});
  }
  for (const int keys : {110, 500, 3000}) {
    check("wgmma:m128n64s2", {.problem = {.dtype = DType::fp16, .head_dim = 64},
                              .shape = {.batch = 1, .heads = 1, .seqlen_q = 64, .seqlen_k = keys},
                              .inputs = InputKind::crowd});
  }
  // The logits' deviation is 90, so that a block's maximum is often 2^127 times what came before.
  for (const char* schedule : {"wgmma:m128n64s2", "wgmma:m128n64s2qr0", "wgmma:m128n64s2pp0ov0"}) {
    check(schedule, {.problem = kD128, .shape = shape, .scale = 8.0f});
    check(schedule, {.problem = {.head_dim = 72, .causal = true}, .shape = shape, .scale = 8.0f});
  }
}
