// Family wgmma on the emulator, all checks on: every knob, the head dims between the panels, and scores that
// make the optimistic softmax wrong, a little (shrink) and beyond recovery (recompute).
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <string>
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
using flashjit::test::AttentionCase;
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

TEST_CASE("CTAs that share out a tile's keys, also where some get none") {
  for (const int keys : {0, 1, 64, 130, 700}) {
    const Shape shape{.batch = 2, .heads = 4, .heads_kv = 2, .seqlen_q = 70, .seqlen_k = keys};
    for (const char* schedule : {"wgmma:m64n64s2pp0p0sp2", "wgmma:m64n64s2pp0p0sp4", "wgmma:m128n64s2p0sp8",
                                 "wgmma:m128n64s2qr0pp0ov0op0p0sp8"}) {
      check(schedule, {.problem = kD128, .shape = shape});
      check(schedule, {.problem = kD128Causal, .shape = shape});
    }
  }
  // More queries than keys, several tiles, and heads packed side by side in some rows of one.
  for (const Shape& shape :
       std::vector<Shape>{{.heads = 2, .seqlen_q = 300, .seqlen_k = 77},
                          {.heads = 2, .seqlen_q = 200, .seqlen_k = 330},
                          {.heads = 16, .heads_kv = 2, .seqlen_q = 1, .seqlen_k = 900},
                          {.heads = 12, .heads_kv = 2, .seqlen_q = 5, .seqlen_k = 333}}) {
    check("wgmma:m128n64s2p0sp4", {.problem = kD128Causal, .shape = shape});
    check("wgmma:m64n64s2pp0p0sp8", {.problem = {.dtype = DType::fp16, .head_dim = 64}, .shape = shape});
  }
  // Columns that do not go round, and such as no CTA is left for.
  const Shape shape{.heads = 3, .seqlen_q = 40, .seqlen_k = 500};
  for (const int head_dim : {8, 40, 72, 104, 152, 256}) {
    for (const Layout layout : {Layout::packed, Layout::strided}) {
      check(head_dim > 192 ? "wgmma:m64n48s2pp0re0p0qr0sp8" : "wgmma:m64n48s2pp0p0qr0sp8",
            {.problem = {.head_dim = head_dim}, .shape = shape, .layout = layout});
    }
  }
  check("wgmma:m64n64s2pp0p0sp4",
        {.problem = {.head_dim = 192, .head_dim_v = 40, .causal = true}, .shape = shape});
  for (const InputKind inputs :
       {InputKind::peaky, InputKind::growing, InputKind::late_giant, InputKind::tiny}) {
    check("wgmma:m64n64s2pp0p0sp8", {.problem = kD128, .shape = shape, .inputs = inputs});
    check("wgmma:m64n64s2pp0p0sp4",
          {.problem = {.dtype = DType::fp16, .head_dim = 72}, .shape = shape, .inputs = inputs});
  }
  check("wgmma:m64n64s2pp0p0sp8", {.problem = kD128, .shape = shape, .silent = 300});
}

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

TEST_CASE("clusters that share out a tile's keys: as many as run at once, and no more than keys last for") {
  for (const int keys : {63, 64, 65, 200, 1000, 3001}) {
    const Shape decode{.batch = 1, .heads = 6, .heads_kv = 2, .seqlen_q = 1, .seqlen_k = keys};
    check("wgmma:m64n16s4pp0p0sp2ch2", {.problem = kD64, .shape = decode});
    check("wgmma:m64n32s3pp0p0sp4", {.problem = {.dtype = DType::fp16, .head_dim = 72}, .shape = decode});
  }
  // Several tiles, whose rows see different keys, and rows that see none.
  for (const char* schedule : {"wgmma:m64n16s4pp0p0sp2ch2", "wgmma:m128n32s5p0sp3"}) {
    check(schedule, {.problem = {.head_dim = 64, .causal = true},
                     .shape = {.batch = 1, .heads = 2, .seqlen_q = 150, .seqlen_k = 900}});
    check(schedule, {.problem = {.head_dim = 64, .causal = true},
                     .shape = {.batch = 1, .heads = 2, .seqlen_q = 300, .seqlen_k = 200}});
  }
  // Columns that do not go round, no LSE, and wide heads.
  const Shape one{.batch = 1, .heads = 1, .seqlen_q = 40, .seqlen_k = 1200};
  for (const int head_dim : {8, 40, 104, 256}) {
    check(head_dim > 192 ? "wgmma:m64n16s4pp0re0p0qr0sp8ch2" : "wgmma:m64n16s4pp0p0qr0sp8ch2",
          {.problem = {.head_dim = head_dim, .lse = false}, .shape = one});
  }
  for (const InputKind inputs :
       {InputKind::peaky, InputKind::growing, InputKind::late_giant, InputKind::tiny}) {
    check("wgmma:m64n16s5pp0p0sp5ch2", {.problem = kD64, .shape = one, .inputs = inputs});
  }
  check("wgmma:m64n16s5pp0p0sp3ch2", {.problem = kD64, .shape = one, .silent = 700});
}

TEST_CASE("even shares of keys: parts of tiles, whole ones, and whole waves dealt before them") {
  test::EmulatedEngine few = test::open_emulated_engine({.arch = "sm_90a", .sm_count = 5});
  const auto check_few = [&](const std::string& schedule, const AttentionCase& one) {
    CAPTURE(schedule);
    CAPTURE(describe(one));
    const autotune::Check result = Attention(one).run(few.engine, {.schedule = schedule});
    CHECK_MESSAGE(result.ok, result.message);
  };
  // 2, 6, 8 and 17 tiles of 128 rows for five CTAs; rows past the end, and keys that end in a block or have
  // none.
  for (const int queries : {200, 700, 1000, 2150}) {
    for (const int keys : {0, 1, 130, 600}) {
      const Shape shape{.batch = 1, .heads = 1, .seqlen_q = queries, .seqlen_k = keys};
      check_few("wgmma:m128n64s2p3", {.problem = kD128, .shape = shape});
      check_few("wgmma:m192n64s3qr0p3", {.problem = {.dtype = DType::fp16, .head_dim = 64}, .shape = shape});
    }
    // Under a mask tiles see more or fewer keys, and none where queries are more.
    for (const int keys : {0, 1, 600, 2000}) {
      const Shape shape{.batch = 1, .heads = 2, .seqlen_q = queries, .seqlen_k = keys};
      check_few("wgmma:m128n64s2qr0p3", {.problem = kD128Causal, .shape = shape});
      check_few("wgmma:m192n48s3qr0p3",
                {.problem = {.dtype = DType::fp16, .head_dim = 64, .causal = true}, .shape = shape});
    }
  }
  // Rows of four heads fill a tile of 48 queries, of which the last has fewer.
  for (const int keys : {100, 333, 1000}) {
    const Shape group{.batch = 2, .heads = 8, .heads_kv = 2, .seqlen_q = 150, .seqlen_k = keys};
    check_few("wgmma:m192n64s3qr0p3", {.problem = {.head_dim = 64, .causal = true}, .shape = group});
    check_few("wgmma:m64n32s3pp0p3", {.problem = kD128Causal, .shape = group});
  }
  // Keys of their own: few queries, several heads of which one tile has, and batches.
  for (const int batch : {1, 3, 6}) {
    const Shape decode{.batch = batch, .heads = 8, .heads_kv = 2, .seqlen_q = 1, .seqlen_k = 900};
    check_few("wgmma:m64n32s3pp0p3", {.problem = kD128, .shape = decode});
    check_few("wgmma:m64n64s2pp0ov0op0p3", {.problem = kD128Causal, .shape = decode});
    check_few("wgmma:m64n48s2qr0pp0re0p3", {.problem = {.head_dim = 256, .lse = false}, .shape = decode});
  }
  // As few blocks as would leave some share without any.
  for (const int batch : {3, 4, 6, 7}) {
    for (const int keys : {0, 20, 60, 100, 130, 160}) {
      const Shape brief{.batch = batch, .heads = 8, .heads_kv = 2, .seqlen_q = 1, .seqlen_k = keys};
      check_few("wgmma:m128n32s3p3", {.problem = kD128, .shape = brief});
    }
  }
  // One tile for all CTAs there are.
  const Shape one{.batch = 1, .heads = 1, .seqlen_q = 40, .seqlen_k = 5000};
  check("wgmma:m64n16s4pp0p3", {.problem = kD64, .shape = one});
  const Shape shape{.batch = 1, .heads = 3, .seqlen_q = 150, .seqlen_k = 700};
  for (const int head_dim : {8, 40, 104, 152}) {
    for (const Layout layout : {Layout::packed, Layout::strided}) {
      check_few("wgmma:m64n48s2pp0qr0p3",
                {.problem = {.head_dim = head_dim}, .shape = shape, .layout = layout});
    }
  }
  check_few("wgmma:m64n64s2pp0p3", {.problem = {.head_dim = 192, .head_dim_v = 40}, .shape = shape});
  for (const InputKind inputs :
       {InputKind::peaky, InputKind::growing, InputKind::late_giant, InputKind::tiny}) {
    check_few("wgmma:m64n64s2pp0p3", {.problem = kD128, .shape = shape, .inputs = inputs});
    check_few("wgmma:m128n64s2p3",
              {.problem = {.dtype = DType::fp16, .head_dim = 72}, .shape = shape, .inputs = inputs});
  }
  check_few("wgmma:m64n64s2pp0p3", {.problem = kD128, .shape = shape, .silent = 300});
}

TEST_CASE("even shares: the same bits from launch to launch, whoever comes last") {
  // Two CTAs run at once: whether one finds the other's pieces is chance, and so is how warps interleave.
  test::EmulatedEngine few = test::open_emulated_engine({.arch = "sm_90a", .threads = 2, .sm_count = 5});
  for (const auto& one : std::vector<std::pair<std::string, Shape>>{
           {"wgmma:m128n64s2p3", {.batch = 1, .heads = 1, .seqlen_q = 900, .seqlen_k = 700}},
           {"wgmma:m128n64s2p3cl2", {.batch = 1, .heads = 2, .seqlen_q = 700, .seqlen_k = 700}},
           {"wgmma:m64n32s3pp0p3", {.batch = 1, .heads = 2, .seqlen_q = 50, .seqlen_k = 1500}}}) {
    const std::string& schedule = one.first;
    const Shape& shape = one.second;
    CAPTURE(schedule);
    const test::Extent queries{shape.batch, shape.seqlen_q, shape.heads, 128};
    const test::Extent keys{shape.batch, shape.seqlen_k, shape.heads, 128};
    const autotune::Inputs in = autotune::make_inputs(kD128, shape, InputKind::normal, 1, {});
    const test::OnDevice q(few.engine, kD128.dtype, in.q, queries, false);
    const test::OnDevice k(few.engine, kD128.dtype, in.k, keys, false);
    const test::OnDevice v(few.engine, kD128.dtype, in.v, keys, false);
    const Plan plan = few.engine.plan(kD128, shape, {.schedule = schedule});
    std::vector<std::byte> first;
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      CAPTURE(seed);
      few.device->set_seed(seed);
      autotune::HostTensor o =
          autotune::poisoned(kD128.dtype, shape.batch, shape.seqlen_q, shape.heads, 128, {});
      const test::OnDevice there(few.engine, kD128.dtype, o, queries, false);
      plan.forward({.q = q.data(), .k = k.data(), .v = v.data(), .o = there.data()});
      there.download(o);
      if (first.empty()) first = o.bytes;
      CHECK(o.bytes == first);
    }
  }
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
