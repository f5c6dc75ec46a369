// Family wgmma's backward pass on the emulator, all checks on: both ways to get dQ, the head dims between the
// panels, groups of heads, rows that see no key.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "generator/schedule.hpp"
#include "generator/splits.hpp"
#include "tests/support/emulated_engine.hpp"
#include "tests/support/gradient_case.hpp"

using namespace flashjit;
using flashjit::autotune::InputKind;
using flashjit::test::AttentionCase;
using flashjit::test::Gradients;
using flashjit::test::Layout;

namespace {

void check(const std::string& schedule, AttentionCase one) {
  one.problem.pass = Pass::backward;
  CAPTURE(schedule);
  CAPTURE(describe(one));
  const Gradients::Result result = Gradients(one).run(test::emulated_sm_90a(), {.schedule = schedule}, false);
  CHECK_MESSAGE(result.check.ok, result.check.message);
}

// dK and dV are right, and have the same bits however CTAs interleave.
void check_repeats(const AttentionCase& one, test::EmulatedEngine& emulated, const char* schedule,
                   std::uint64_t seeds) {
  const Gradients gradients(one);
  std::vector<std::byte> dk, dv;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    emulated.device->set_seed(seed);
    const Gradients::Result result = gradients.run(emulated.engine, {.schedule = schedule}, false);
    CHECK_MESSAGE(result.check.ok, result.check.message);
    if (dk.empty()) {
      dk = result.dk.bytes;
      dv = result.dv.bytes;
    }
    CHECK(result.dk.bytes == dk);
    CHECK(result.dv.bytes == dv);
  }
}

const std::vector<const char*> kD64{"wgmma-backward:m128n128s2",      "wgmma-backward:m128n128s2t1",
                                    "wgmma-backward:m128n128s2sp2",   "wgmma-backward:m128n128s2dq2",
                                    "wgmma-backward:m128n128s2dq2t1", "wgmma-backward:m64n64s2dq0"};
const std::vector<const char*> kD128{
    "wgmma-backward:m80n128s2",    "wgmma-backward:m80n128s2t1",    "wgmma-backward:m80n128s2dq2",
    "wgmma-backward:m80n128s2sp3", "wgmma-backward:m64n128s2t1sp2", "wgmma-backward:m64n128s2",
    "wgmma-backward:m64n128s2t1",  "wgmma-backward:m64n128s2dq0",   "wgmma-backward:m64n128s2dq2t1",
    "wgmma-backward:m64n128s2dq2", "wgmma-backward:m64n64s2dq0"};
const std::vector<const char*> kD256{"wgmma-backward:m64n64s2", "wgmma-backward:m64n64s2dq2",
                                     "wgmma-backward:m64n64s2dq0"};
// Ragged ends, keys before the first query's diagonal, a group of heads, several tiles.
constexpr Shape kRagged{.batch = 1, .heads = 4, .heads_kv = 2, .seqlen_q = 200, .seqlen_k = 330};

}  // namespace

TEST_CASE("every way and knob, full and causal") {
  for (const bool causal : {false, true}) {
    for (const char* schedule : kD64) check(schedule, {{.head_dim = 64, .causal = causal}, kRagged});
    for (const char* schedule : kD128) {
      check(schedule, {{.dtype = DType::fp16, .head_dim = 128, .causal = causal}, kRagged});
    }
    check("wgmma-backward:m128n128s2dq0", {{.head_dim = 56, .causal = causal}, kRagged});
    for (const char* schedule : kD256) check(schedule, {{.head_dim = 256, .causal = causal}, kRagged});
  }
}

TEST_CASE("shares of dQ that keep an order have the same bits however CTAs interleave") {
  // Eight tiles of keys: all shares but the first could change places.
  AttentionCase one{{.head_dim = 64}, {.batch = 1, .heads = 1, .seqlen_q = 200, .seqlen_k = 1000}};
  one.problem.pass = Pass::backward;
  const Gradients gradients(one);
  test::EmulatedEngine emulated = test::open_emulated_engine({.threads = 4, .sm_count = 8});
  std::vector<std::byte> first;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    emulated.device->set_seed(seed);
    const Gradients::Result result =
        gradients.run(emulated.engine, {.schedule = "wgmma-backward:m128n128s2dq2"}, true);
    CHECK_MESSAGE(result.check.ok, result.check.message);
    if (first.empty()) first = result.dq.bytes;
    CHECK(result.dq.bytes == first);
  }
}

TEST_CASE("queries of a tile of keys in parts: of heads, of rows, of both, or none to divide") {
  struct Parts {
    int heads, heads_kv, splits;
  };
  for (const auto& [heads, heads_kv, splits] :
       std::vector<Parts>{{6, 1, 6}, {6, 2, 2}, {10, 2, 4}, {2, 2, 3}, {2, 1, 8}, {1, 1, 32}}) {
    const Shape shape{.batch = 2, .heads = heads, .heads_kv = heads_kv, .seqlen_q = 300, .seqlen_k = 200};
    for (const bool causal : {false, true}) {
      check(fmt::format("wgmma-backward:m64n128s2sp{}", splits),
            {{.head_dim = 72, .head_dim_v = 88, .causal = causal}, shape});
      check(fmt::format("wgmma-backward:m80n128s2t1sp{}", splits),
            {{.dtype = DType::fp16, .head_dim = 128, .head_dim_v = 24, .causal = causal}, shape});
      check(fmt::format("wgmma-backward:m128n128s2sp{}", splits),
            {{.head_dim = 40, .causal = causal}, shape});
      check(fmt::format("wgmma-backward:m64n128s2t1sp{}st1", splits),
            {{.dtype = DType::fp16, .head_dim = 104, .causal = causal}, shape});
    }
  }
}

TEST_CASE("two shares of dK and dV have the same sum however CTAs interleave") {
  AttentionCase one{{.head_dim = 64}, {.batch = 1, .heads = 2, .seqlen_q = 500, .seqlen_k = 200}};
  one.problem.pass = Pass::backward;
  test::EmulatedEngine emulated = test::open_emulated_engine({.threads = 4, .sm_count = 8});
  check_repeats(one, emulated, "wgmma-backward:m128n128s2sp16", 4);
}

TEST_CASE("the last tiles in two parts, with the same sums however CTAs interleave") {
  struct Kind {
    const char* schedule;
    int head_dim, head_dim_v, seqlen_q;
  };
  const std::vector<Kind> kinds{{"wgmma-backward:m128n128s2t1", 40, 64, 1020},
                                {"wgmma-backward:m128n128s2t1", 64, 64, 1100},
                                {"wgmma-backward:m64n128s2", 128, 96, 540},
                                {"wgmma-backward:m64n128s2st1", 104, 128, 540},
                                {"wgmma-backward:m80n128s2t1", 128, 128, 700}};
  struct Heads {
    int heads, heads_kv, seqlen_k, ctas;
  };
  // Five tiles for four CTAs, and nine for eight.
  for (const Heads& of : {Heads{1, 1, 600, 4}, Heads{6, 3, 330, 8}}) {
    test::EmulatedEngine emulated = test::open_emulated_engine({.threads = 4, .sm_count = of.ctas});
    for (const Kind& kind : kinds) {
      CAPTURE(kind.schedule);
      CAPTURE(of.heads);
      AttentionCase one{{.head_dim = kind.head_dim, .head_dim_v = kind.head_dim_v},
                        {.batch = 1,
                         .heads = of.heads,
                         .heads_kv = of.heads_kv,
                         .seqlen_q = kind.seqlen_q,
                         .seqlen_k = of.seqlen_k}};
      one.problem.pass = Pass::backward;
      const int tile_m = get(parse_schedule(kind.schedule), "tile_m");
      REQUIRE(divided_tiles((of.seqlen_k - 1) / 128 * of.heads_kv + of.heads_kv, of.heads / of.heads_kv,
                            (kind.seqlen_q - 1) / tile_m + 1, of.ctas)
                  .count > 0);
      check_repeats(one, emulated, kind.schedule, 3);
    }
  }
}

TEST_CASE("head dims that end inside a panel, and values wider or narrower than keys") {
  const Shape shape{.batch = 2, .heads = 2, .heads_kv = 1, .seqlen_q = 70, .seqlen_k = 150};
  for (const int head_dim : {8, 24, 40, 56}) {
    for (const char* schedule : {"wgmma-backward:m128n128s2", "wgmma-backward:m128n128s2dq2"}) {
      check(schedule, {{.head_dim = head_dim}, shape});
    }
  }
  for (const int head_dim : {72, 96, 120}) {
    for (const char* schedule :
         {"wgmma-backward:m64n128s2", "wgmma-backward:m64n128s2dq2", "wgmma-backward:m64n128s2st1"}) {
      check(schedule, {{.head_dim = head_dim, .causal = true}, shape});
    }
  }
  for (const int head_dim : {16, 136, 184, 232}) {
    check("wgmma-backward:m64n64s2dq0", {{.head_dim = head_dim, .causal = true}, shape});
  }
  for (const int head_dim : {136, 192}) {
    check("wgmma-backward:m64n64s2", {{.head_dim = head_dim, .causal = true}, shape});
  }
  check("wgmma-backward:m64n64s2dq2", {{.head_dim = 152}, shape});
  check("wgmma-backward:m64n64s2", {{.dtype = DType::fp16, .head_dim = 192, .head_dim_v = 128}, shape});
  check("wgmma-backward:m64n64s2", {{.head_dim = 184, .head_dim_v = 256, .causal = true}, shape});
  check("wgmma-backward:m64n64s2", {{.head_dim = 256, .head_dim_v = 72}, shape});
  check("wgmma-backward:m64n128s2", {{.head_dim = 104, .head_dim_v = 16}, shape});
  check("wgmma-backward:m64n128s2st1", {{.head_dim = 104, .head_dim_v = 16}, shape});
  check("wgmma-backward:m64n128s2st1", {{.head_dim = 72, .head_dim_v = 192, .causal = true}, shape});
  check("wgmma-backward:m128n128s2", {{.head_dim = 48, .head_dim_v = 72}, shape});
  check("wgmma-backward:m64n64s2dq0", {{.head_dim = 192, .head_dim_v = 128, .causal = true}, shape});
  check("wgmma-backward:m64n64s2dq0", {{.dtype = DType::fp16, .head_dim = 40, .head_dim_v = 200}, shape});
}

TEST_CASE("no keys, no queries, one of each, rows that see no key") {
  for (const Shape& shape : std::vector<Shape>{{.heads = 2, .seqlen_q = 65, .seqlen_k = 0},
                                               {.heads = 2, .seqlen_q = 0, .seqlen_k = 65},
                                               {.heads = 2, .seqlen_q = 1, .seqlen_k = 1},
                                               {.heads = 6, .heads_kv = 2, .seqlen_q = 300, .seqlen_k = 77},
                                               {.heads = 2, .seqlen_q = 64, .seqlen_k = 383}}) {
    // Who adds to dQ first, and last, is who may be nobody.
    for (const char* schedule : {"wgmma-backward:m64n128s2", "wgmma-backward:m80n128s2",
                                 "wgmma-backward:m64n128s2dq2", "wgmma-backward:m64n128s2sp4"}) {
      for (const bool causal : {false, true}) check(schedule, {{.head_dim = 128, .causal = causal}, shape});
    }
    check("wgmma-backward:m128n128s2dq0", {{.head_dim = 56, .causal = true}, shape});
    for (const char* schedule : kD256) check(schedule, {{.head_dim = 160, .causal = true}, shape});
    check("wgmma-backward:m64n64s2", {{.head_dim = 256}, shape});
  }
}

TEST_CASE("strides, and inputs that hurt") {
  const Shape shape{.batch = 2, .heads = 2, .heads_kv = 1, .seqlen_q = 130, .seqlen_k = 200};
  for (const char* schedule : {"wgmma-backward:m64n128s2", "wgmma-backward:m64n128s2dq2",
                               "wgmma-backward:m64n64s2dq0", "wgmma-backward:m64n128s2sp2"}) {
    const Problem problem{.head_dim = 96, .causal = true};
    for (const Layout layout : {Layout::strided, Layout::shared}) {
      check(schedule, {.problem = problem, .shape = shape, .layout = layout});
    }
    for (const InputKind inputs : {InputKind::peaky, InputKind::growing, InputKind::late_giant}) {
      check(schedule, {.problem = problem, .shape = shape, .inputs = inputs});
    }
  }
}
