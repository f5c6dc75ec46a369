// Family wgmma on the emulator: CTAs and clusters that share out the keys of a tile, and even shares of all
// keys.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "autotune/inputs.hpp"
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

}  // namespace

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
  // Infinite values stay so: no cluster that is missing makes NaN of the last one's.
  for (const int keys : {200, 1000, 3001}) {
    const Shape decode{.batch = 1, .heads = 6, .heads_kv = 2, .seqlen_q = 1, .seqlen_k = keys};
    check("wgmma:m64n16s4pp0p0sp2ch2", {.problem = kD64, .shape = decode, .endless = 190});
  }
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
