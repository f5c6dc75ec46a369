// Family wgmma on the emulator, all checks on: every knob, the orders of tiles, and the head dims between the
// panels.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "autotune/inputs.hpp"
#include "autotune/numeric.hpp"
#include "tests/support/attention_case.hpp"
#include "tests/support/emulated_engine.hpp"
#include "tests/support/on_device.hpp"
#include "tests/wgmma/emulated_check.hpp"

using namespace flashjit;
using flashjit::autotune::InputKind;
using flashjit::test::Attention;
using flashjit::test::check;
using flashjit::test::Layout;

namespace {

constexpr Problem kD64{.head_dim = 64};
constexpr Problem kD128{.head_dim = 128};
constexpr Problem kD128Causal{.head_dim = 128, .causal = true};
// Several tiles for each of the CTAs, a ragged end, keys before the first query's diagonal.
constexpr Shape kRagged{.batch = 1, .heads = 4, .heads_kv = 2, .seqlen_q = 200, .seqlen_k = 330};

}  // namespace

TEST_CASE("every knob") {
  for (const char* schedule :
       {"wgmma:m128n128s2p2", "wgmma:m64n128s2p2pp0", "wgmma:m128n96s3p2", "wgmma:m128n64s1p2",
        "wgmma:m128n64s2p2qr0", "wgmma:m128n64s2p2qr2", "wgmma:m128n64s2p2o0", "wgmma:m128n64s2p2o2",
        "wgmma:m128n64s2p2op0", "wgmma:m128n64s2p2op0lz0", "wgmma:m128n64s2p2pp0", "wgmma:m128n64s2p2re0",
        "wgmma:m128n64s2p1", "wgmma:m128n64s2p0", "wgmma:m128n64s2p2l1", "wgmma:m128n64s2p2ch2",
        "wgmma:m128n64s2p2u2", "wgmma:m128n64s2p2pp0ov0", "wgmma:m128n64s2p2re0op0lz0"}) {
    check(schedule, {.problem = kD128Causal, .shape = kRagged});
  }
  check("wgmma:m256n64s4qr0ch2", {.problem = kD64, .shape = kRagged});
  check("wgmma:m192n128s2qr0re0u2", {.problem = kD64, .shape = kRagged});
  check("wgmma:m128n64s2qr2", {.problem = {.head_dim = 192}, .shape = kRagged});
  check("wgmma:m128n64s2qr0o2re0", {.problem = {.head_dim = 256}, .shape = kRagged});
}

TEST_CASE("tiles off a counter without a mask") {
  test::EmulatedEngine few = test::open_emulated_engine({.arch = "sm_90a", .sm_count = 3});
  for (const auto& [problem, schedule] :
       {std::pair(Problem{.head_dim = 96}, "wgmma:m128n64s2p2"), {kD128, "wgmma:m128n128s2p2"}}) {
    for (const auto& [queries, keys] : {std::pair(128, 128), {200, 330}, {70, 0}}) {
      const Shape shape{.batch = 3, .heads = 4, .heads_kv = 2, .seqlen_q = queries, .seqlen_k = keys};
      const autotune::Check result =
          Attention({.problem = problem, .shape = shape}).run(few.engine, {.schedule = schedule});
      CHECK_MESSAGE(result.ok, result.message);
    }
  }
}

TEST_CASE("several CTAs on a multiprocessor") {
  constexpr Problem kD32Causal{.head_dim = 32, .causal = true};
  constexpr Shape kShort{.batch = 5, .heads = 4, .heads_kv = 2, .seqlen_q = 128, .seqlen_k = 128};
  for (const Shape& shape : {kRagged, kShort}) {
    for (const char* schedule : {"wgmma:m128n64s3p2c2", "wgmma:m64n48s2qr0pp0p2c4", "wgmma:m64n48s2pp0p0c4"})
      check(schedule, {.problem = kD32Causal, .shape = shape});
    for (const char* schedule : {"wgmma:m64n64s3pp0c3", "wgmma:m128n48s3qr0c2", "wgmma:m64n64s2pp0p3c3",
                                 "wgmma:m64n64s2pp0cl2c3", "wgmma:m64n64s2pp0p0sp2c3"})
      check(schedule, {.problem = kD64, .shape = shape});
  }
}

TEST_CASE("several sections, and a last one that is longer or shorter") {
  test::EmulatedEngine few = test::open_emulated_engine({.arch = "sm_90a", .sm_count = 3});
  const Problem problem{.head_dim = 64, .causal = true};
  for (const int heads : {1, 6, 9}) {  // four in a megabyte
    for (const int queries : {40, 300}) {
      const Shape shape{.batch = 1, .heads = heads, .seqlen_q = queries, .seqlen_k = 1000};
      const autotune::Check result = Attention({.problem = problem, .shape = shape})
                                         .run(few.engine, {.schedule = "wgmma:m128n64s2p2l1"});
      CHECK_MESSAGE(result.ok, result.message);
    }
  }
}

TEST_CASE("a second wave whose halves come in turns, all of it or some") {
  test::EmulatedEngine few = test::open_emulated_engine({.arch = "sm_90a", .sm_count = 7});
  // Tiles of 2.3 to 4.6 waves; of pairs, which are three clusters, 2.7 to 5.3.
  for (const int heads : {8, 9, 10, 16}) {
    const Shape shape{.batch = 1, .heads = heads, .seqlen_q = 190, .seqlen_k = 190};
    for (const char* schedule : {"wgmma:m128n64s2p2", "wgmma:m128n64s2p2cl2"}) {
      CAPTURE(schedule);
      CAPTURE(heads);
      const autotune::Check result =
          Attention({.problem = kD128Causal, .shape = shape}).run(few.engine, {.schedule = schedule});
      CHECK_MESSAGE(result.ok, result.message);
    }
  }
}

TEST_CASE("wide values under a mask: from the first block up") {
  for (const char* schedule :
       {"wgmma:m128n64s2qr0o4re0p2", "wgmma:m128n64s2qr0o4re0p2cl2", "wgmma:m128n64s2qr0o4pp0ov0"}) {
    for (const auto& [queries, keys] : {std::pair(70, 330), {128, 128}, {200, 150}, {300, 411}}) {
      check(schedule,
            {.problem = {.head_dim = 40, .head_dim_v = 200, .causal = true},
             .shape = {.batch = 2, .heads = 4, .heads_kv = 2, .seqlen_q = queries, .seqlen_k = keys}});
    }
  }
  check("wgmma:m128n64s2qr0o2re0p2",
        {.problem = {.dtype = DType::fp16, .head_dim = 256, .causal = true}, .shape = kRagged});
}

TEST_CASE("pairs of CTAs that load K and V for each other, also where one of them has no rows") {
  for (const int queries : {70, 128, 200, 300, 530}) {
    const Shape shape{.batch = 2, .heads = 4, .heads_kv = 2, .seqlen_q = queries, .seqlen_k = 330};
    check("wgmma:m128n64s2cl2", {.problem = kD128, .shape = shape});
    check("wgmma:m192n64s3qr0cl2p0", {.problem = {.dtype = DType::fp16, .head_dim = 72}, .shape = shape});
  }
  check("wgmma:m64n64s1pp0ov0cl2", {.problem = kD64, .shape = kRagged});
  check("wgmma:m128n64s2qr0o2re0cl2", {.problem = {.head_dim = 256}, .shape = kRagged});
  for (const int keys : {0, 1, 64}) {
    check("wgmma:m128n64s2cl2", {.problem = kD64, .shape = {.heads = 2, .seqlen_q = 200, .seqlen_k = keys}});
  }
  // Under a mask their warpgroups take rows in turn, and tiles come off a counter, or do not.
  for (const char* schedule :
       {"wgmma:m128n64s2qr0p2cl2", "wgmma:m128n64s2qr0cl2", "wgmma:m128n64s2qr0p0cl2"}) {
    for (const int queries : {70, 128, 200, 530}) {
      check(schedule,
            {.problem = kD128Causal,
             .shape = {.batch = 2, .heads = 4, .heads_kv = 2, .seqlen_q = queries, .seqlen_k = 330}});
    }
  }
  check("wgmma:m192n64s3qr0p2cl2",
        {.problem = {.dtype = DType::fp16, .head_dim = 88, .causal = true}, .shape = kRagged});
  // Heads packed side by side, over both CTAs' rows.
  check("wgmma:m128n64s2cl2",
        {.problem = kD64, .shape = {.heads = 32, .heads_kv = 2, .seqlen_q = 13, .seqlen_k = 150}});
}

TEST_CASE("head dims that end inside a panel, and values wider or narrower than keys") {
  const Shape shape{.batch = 2, .heads = 2, .heads_kv = 1, .seqlen_q = 70, .seqlen_k = 150};
  for (const int head_dim : {8, 24, 40, 72, 80, 112, 136, 184}) {
    check("wgmma:m64n64s2pp0o0", {.problem = {.head_dim = head_dim}, .shape = shape});
  }
  // K's last panel is narrow up to 32 columns, and half of its last step is cleared once.
  for (const int head_dim : {72, 88, 96, 104, 152}) {
    for (const Layout layout : {Layout::packed, Layout::strided, Layout::shared}) {
      check("wgmma:m64n48s3pp0qr0", {.problem = {.head_dim = head_dim}, .shape = kRagged, .layout = layout});
    }
  }
  check("wgmma:m128n112s2qr0p2",
        {.problem = {.head_dim = 192, .head_dim_v = 128, .causal = true}, .shape = shape});
  check("wgmma:m128n64s2qr0o4re0", {.problem = {.head_dim = 40, .head_dim_v = 200}, .shape = shape});
  check("wgmma:m128n64s2",
        {.problem = {.dtype = DType::fp16, .head_dim = 104, .head_dim_v = 16}, .shape = shape});
}

TEST_CASE("what a head holds stays out of its neighbours, to the last bit") {
  const Shape shape{.heads = 3, .seqlen_q = 70, .seqlen_k = 100};
  for (const int head_dim : {72, 88, 104, 128}) {
    const Problem problem{.head_dim = head_dim};
    const autotune::Inputs inputs = autotune::make_inputs(problem, shape, InputKind::normal, 1, {});
    autotune::Inputs spoilt = inputs;
    for (int i = 0; i < shape.seqlen_k * shape.heads * head_dim; ++i) {
      if (i / head_dim % shape.heads == 1) continue;
      for (autotune::HostTensor* tensor : {&spoilt.k, &spoilt.v})
        autotune::store_element(problem.dtype, tensor->bytes.data(), i, std::nanf(""));
    }
    const auto head_1 = [&](const autotune::Inputs& of) {
      const test::Extent keys{1, shape.seqlen_k, shape.heads, head_dim};
      const test::Extent queries{1, shape.seqlen_q, shape.heads, head_dim};
      autotune::HostTensor o =
          autotune::poisoned(problem.dtype, 1, shape.seqlen_q, shape.heads, head_dim, {});
      const test::OnDevice q(test::emulated_sm_90a(), problem.dtype, of.q, queries, false);
      const test::OnDevice k(test::emulated_sm_90a(), problem.dtype, of.k, keys, false);
      const test::OnDevice v(test::emulated_sm_90a(), problem.dtype, of.v, keys, false);
      const test::OnDevice there(test::emulated_sm_90a(), problem.dtype, o, queries, false);
      test::emulated_sm_90a()
          .plan(problem, shape, {.schedule = "wgmma:m128n64s2qr0"})
          .forward({.q = q.data(), .k = k.data(), .v = v.data(), .o = there.data()});
      there.download(o);
      std::vector<std::byte> rows;
      const std::size_t bytes = 2 * static_cast<std::size_t>(head_dim);
      for (std::size_t row = 1; row < o.bytes.size() / bytes; row += 3)
        rows.insert(rows.end(), &o.bytes[row * bytes], &o.bytes[row * bytes] + bytes);
      return rows;
    };
    CAPTURE(head_dim);
    CHECK(head_1(spoilt) == head_1(inputs));
  }
}
