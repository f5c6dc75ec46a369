// Buckets: they stay put while a sequence grows, and tell apart what wants other tiles.
#include <doctest/doctest.h>

#include <set>
#include <string>

#include "autotune/tuner.hpp"

using namespace flashjit;
using namespace flashjit::autotune;

TEST_CASE("a short sequence's tile is as high as it has queries, and its bucket says so") {
  const Target target = target_of("sm_90a");
  const auto cells = [](int seqlen) {
    return Shape{.batch = 85, .heads = 23, .seqlen_q = seqlen, .seqlen_k = seqlen};
  };
  const auto best = [&](int head_dim, int seqlen) {
    return std::get<WgmmaSchedule>(
        ranked_space({.head_dim = head_dim}, cells(seqlen), target).front().schedule);
  };
  // Measured, docs/performance/wgmma/short-sequences.md.
  for (const int head_dim : {40, 72, 88, 96, 104, 120}) {
    CAPTURE(head_dim);
    CHECK(best(head_dim, 192).tile_m == 192);
    CHECK(best(head_dim, 160).tile_m == 192);
  }
  for (const int head_dim : {136, 152, 200, 248}) CHECK(best(head_dim, 192).persistent != 0);
  const Problem problem{.head_dim = 88};
  CHECK(bucket_of(problem, cells(192), target) == "b27r3");
  CHECK(bucket_of(problem, cells(193), target) == "b27r4");
  CHECK(bucket_of(problem, cells(512), target).ends_with("r8"));
  CHECK(bucket_of(problem, cells(513), target).find('r') == std::string::npos);
  CHECK(bucket_of(problem, cells(128), target).ends_with("q128"));
  CHECK(bucket_of({.pass = Pass::backward, .head_dim = 88}, cells(192), target).find('r') ==
        std::string::npos);
}

TEST_CASE(
    "buckets of gradients know how many heads share keys under a mask, and a few waves of tiles of keys") {
  const Target target = target_of("sm_90a");
  Problem gradients{.pass = Pass::backward, .head_dim = 88, .causal = true};
  Shape shared{.batch = 85, .heads = 24, .heads_kv = 24, .seqlen_q = 512, .seqlen_k = 512};
  CHECK(bucket_of(gradients, shared, target) == "b30");
  shared.heads_kv = 6;
  CHECK(bucket_of(gradients, shared, target) == "b30g4");
  gradients.causal = false;
  CHECK(bucket_of(gradients, shared, target) == "b31");
  shared.batch = 9;  // 216 tiles for 132 multiprocessors
  CHECK(bucket_of(gradients, shared, target) == "b28w14");
  gradients.dtype = DType::fp32;  // whose tiles are not shared out
  CHECK(bucket_of(gradients, shared, target) == "b28");
}

TEST_CASE("fp32 gradients of fewer than 16 queries share no bucket with those of 16") {
  const Target target = target_of("sm_90a");
  const auto bucket = [&](DType dtype, int queries) {
    const Problem gradients{.pass = Pass::backward, .dtype = dtype, .head_dim = 64};
    const Shape shape{.batch = 1, .heads = 8, .seqlen_q = queries, .seqlen_k = 4096};
    return bucket_of(gradients, shape, target).substr(3);  // behind the work
  };
  for (const auto& [queries, name] :
       {std::pair{1, "q1"}, {8, "q8"}, {9, "q15"}, {15, "q15"}, {16, "q16"}, {17, "q32"}})
    CHECK(bucket(DType::fp32, queries) == name);
  CHECK(bucket(DType::bf16, 15).starts_with("q16"));
}

TEST_CASE("a bucket holds while a sequence grows, and knows few queries from many") {
  const Problem problem{.head_dim = 128, .causal = true};
  const Target target = target_of("sm_90a");
  std::set<std::string> buckets;
  for (int seqlen = 4096; seqlen <= 8192; seqlen += 16) {
    buckets.insert(
        bucket_of(problem, {.batch = 1, .heads = 32, .seqlen_q = seqlen, .seqlen_k = seqlen}, target));
  }
  CHECK(buckets.size() <= 3);  // four times the work
  std::set<std::string> decode;
  for (int keys = 1024; keys < 2048; ++keys) {
    decode.insert(bucket_of(problem, {.batch = 8, .heads = 32, .seqlen_q = 1, .seqlen_k = keys}, target));
  }
  CHECK(decode.size() <= 2);
  CHECK(decode.begin()->ends_with("q1t256"));
  CHECK(bucket_of(problem, {.batch = 1, .heads = 1, .seqlen_q = 0, .seqlen_k = 0}, target) == "b0q1");
  CHECK(bucket_of(problem, {.batch = 8, .heads = 32, .seqlen_q = 63, .seqlen_k = 64}, target)
            .ends_with("q64t256"));
  // A chunk of a prompt beside a long past is no long prompt.
  CHECK(bucket_of(problem, {.batch = 4, .heads = 16, .seqlen_q = 500, .seqlen_k = 20000}, target)
            .ends_with("q512w16"));
  for (const auto& [queries, keys] : {std::pair{513, 20000}, {500, 500}, {300, 1000}}) {
    CHECK(bucket_of(problem, {.batch = 4, .heads = 16, .seqlen_q = queries, .seqlen_k = keys}, target)
              .find('q') == std::string::npos);
  }
}
