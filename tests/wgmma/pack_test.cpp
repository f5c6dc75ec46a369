// Family wgmma on the emulator: heads that share K and V and lie side by side in tiles.
#include <doctest/doctest.h>

#include <vector>

#include "autotune/inputs.hpp"
#include "tests/support/attention_case.hpp"
#include "tests/wgmma/emulated_check.hpp"

using namespace flashjit;
using flashjit::autotune::InputKind;
using flashjit::test::check;
using flashjit::test::Layout;

namespace {

constexpr Problem kD64{.head_dim = 64};
constexpr Problem kD64Causal{.dtype = DType::fp16, .head_dim = 64, .causal = true};
constexpr Problem kD128{.head_dim = 128};
constexpr Problem kD128Causal{.head_dim = 128, .causal = true};

}  // namespace

TEST_CASE("few queries: heads that share K and V share a tile") {
  for (const Shape& shape :
       std::vector<Shape>{{.batch = 2, .heads = 16, .heads_kv = 2, .seqlen_q = 5, .seqlen_k = 150},
                          {.heads = 64, .heads_kv = 1, .seqlen_q = 1, .seqlen_k = 70},
                          {.heads = 12, .heads_kv = 2, .seqlen_q = 37, .seqlen_k = 20},
                          {.heads = 6, .heads_kv = 2, .seqlen_q = 3, .seqlen_k = 65}}) {
    check("wgmma:m64n64s2pp0p2", {.problem = kD128Causal, .shape = shape});
    check("wgmma:m128n64s2o0", {.problem = {.head_dim = 72, .head_dim_v = 40}, .shape = shape});
  }
  // Rows of several heads that overflow together.
  check("wgmma:m64n64s2pp0p2", {.problem = kD128Causal,
                                .shape = {.heads = 8, .heads_kv = 2, .seqlen_q = 9, .seqlen_k = 300},
                                .scale = 4.0f});
}

TEST_CASE("few queries: groups that leave places of a query empty") {
  for (const Shape& shape :
       std::vector<Shape>{{.batch = 3, .heads = 14, .heads_kv = 2, .seqlen_q = 1, .seqlen_k = 300},
                          {.batch = 2, .heads = 3, .heads_kv = 1, .seqlen_q = 20, .seqlen_k = 150},
                          {.heads = 10, .heads_kv = 2, .seqlen_q = 3, .seqlen_k = 65},
                          {.heads = 48, .heads_kv = 2, .seqlen_q = 2, .seqlen_k = 130},
                          {.heads = 12, .heads_kv = 1, .seqlen_q = 9, .seqlen_k = 700}}) {
    check("wgmma:m64n64s2pp0p2", {.problem = kD128Causal, .shape = shape});
    check("wgmma:m128n64s2o0", {.problem = {.head_dim = 72, .head_dim_v = 40}, .shape = shape});
    // Where CTAs share out keys each stores columns itself.
    check("wgmma:m64n64s2pp0p0sp4", {.problem = kD128, .shape = shape});
    check("wgmma:m64n32s3pp0p3", {.problem = kD64Causal, .shape = shape});
    for (const Layout layout : {Layout::strided, Layout::shared})
      check("wgmma:m64n64s3pp0c3qr0", {.problem = kD64, .shape = shape, .layout = layout});
  }
  // Rows that overflow are computed again, from no head's where a place is empty.
  const Shape shape{.heads = 14, .heads_kv = 2, .seqlen_q = 9, .seqlen_k = 300};
  check("wgmma:m64n64s2pp0p2", {.problem = kD128Causal, .shape = shape, .scale = 4.0f});
  for (const InputKind inputs : {InputKind::growing, InputKind::late_giant})
    check("wgmma:m64n64s2pp0p0sp4", {.problem = kD128, .shape = shape, .inputs = inputs});
}

TEST_CASE("prompts under a mask: a tile's warpgroups see the same keys") {
  for (const int queries : {130, 300}) {
    for (const int keys : {queries, 100, 411}) {
      const Shape shape{.batch = 2, .heads = 8, .heads_kv = 2, .seqlen_q = queries, .seqlen_k = keys};
      check("wgmma:m256n64s3qr0p2", {.problem = kD64Causal, .shape = shape});
      check("wgmma:m192n64s2qr0p2", {.problem = kD128Causal, .shape = shape});
      check("wgmma:m128n64s2p2cl2", {.problem = kD128Causal, .shape = shape});
      check("wgmma:m128n64s2p3", {.problem = kD128Causal, .shape = shape});
    }
  }
}
