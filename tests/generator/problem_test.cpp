// Problems, shapes and targets: what is refused and in which words, names, FLOPs.
#include <doctest/doctest.h>

#include <string>

#include "flashjit/error.hpp"
#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"

using namespace flashjit;

namespace {

template <class T>
std::string refusal_of(const T& value) {
  try {
    validate(value);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    return error.message();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("every head_dim from -8 to 300 is accepted or named") {
  for (int dim = -8; dim <= 300; ++dim) {
    CAPTURE(dim);
    const bool fine = dim >= 8 && dim <= 256 && dim % 8 == 0;
    const std::string may = ", may be a multiple of 8 from 8 to 256";
    CHECK(refusal_of(Problem{.head_dim = dim}) ==
          (fine ? "accepted" : "head_dim is " + std::to_string(dim) + may));
    const bool fine_v = fine || dim == 0;
    CHECK(refusal_of(Problem{.head_dim_v = dim}) ==
          (fine_v ? "accepted" : "head_dim_v is " + std::to_string(dim) + may));
  }
}

TEST_CASE("shapes: what is wrong is named, zero tokens are fine") {
  const Shape good{.batch = 2, .heads = 6, .heads_kv = 2, .seqlen_q = 5, .seqlen_k = 7};
  CHECK(refusal_of(good) == "accepted");
  const auto with = [&](auto change) {
    Shape shape = good;
    change(shape);
    return refusal_of(shape);
  };
  CHECK(with([](Shape& s) { s.seqlen_q = s.seqlen_k = s.batch = 0; }) == "accepted");
  CHECK(with([](Shape& s) { s.heads_kv = 0; }) == "accepted");
  CHECK(with([](Shape& s) { s.batch = -1; }) == "batch is -1, may be 0 or more");
  CHECK(with([](Shape& s) { s.heads = 0; }) == "heads is 0, may be 1 or more");
  CHECK(with([](Shape& s) { s.heads_kv = -2; }) ==
        "heads_kv is -2, may be 1 or more, or 0 for the same as heads");
  CHECK(with([](Shape& s) { s.heads_kv = 4; }) ==
        "heads is 6 with heads_kv 4, may be a multiple of heads_kv");
  CHECK(with([](Shape& s) { s.heads_kv = 12; }) ==
        "heads is 6 with heads_kv 12, may be a multiple of heads_kv");
  CHECK(with([](Shape& s) { s.seqlen_q = -1; }) == "seqlen_q is -1, may be 0 or more");
  CHECK(with([](Shape& s) { s.seqlen_k = -9; }) == "seqlen_k is -9, may be 0 or more");
  constexpr int kLongest = 2147483647 - 512;  // what whole tiles round up to must fit, too
  CHECK(with([](Shape& s) { s.seqlen_q = s.seqlen_k = kLongest; }) == "accepted");
  CHECK(with([](Shape& s) { s.seqlen_k = kLongest + 1; }) ==
        "seqlen_k is 2147483136, may be at most 2147483135");
}

TEST_CASE("words go both ways, others are refused") {
  for (const DType dtype : {DType::fp16, DType::bf16, DType::fp32})
    CHECK(parse_dtype(to_string(dtype)) == dtype);
  for (const Pass pass : {Pass::forward, Pass::backward}) CHECK(parse_pass(to_string(pass)) == pass);
  CHECK_THROWS_WITH_AS(parse_dtype("float"), "dtype is \"float\", may be fp16, bf16 or fp32", Error);
  CHECK_THROWS_WITH_AS(parse_pass(""), "pass is \"\", may be forward or backward", Error);
  CHECK(size_of(DType::fp16) == 2);
  CHECK(size_of(DType::bf16) == 2);
  CHECK(size_of(DType::fp32) == 4);
}

TEST_CASE("descriptions say what matters") {
  CHECK(describe(Problem{.head_dim = 128, .causal = true}) == "forward bf16 d128 causal");
  CHECK(describe(Problem{.dtype = DType::fp32, .head_dim = 64, .head_dim_v = 32, .lse = false}) ==
        "forward fp32 d64/32 full without LSE");
  CHECK(describe(Problem{.head_dim = 64, .head_dim_v = 64}) == "forward bf16 d64 full");
  CHECK(describe(Shape{.batch = 4, .heads = 32, .heads_kv = 8, .seqlen_q = 1, .seqlen_k = 4096}) ==
        "4x32/8x1x4096");
  CHECK(describe(Shape{.batch = 4, .heads = 32, .seqlen_q = 1, .seqlen_k = 4096}) == "4x32x1x4096");
}

TEST_CASE("FLOPs as FlashAttention counts them") {
  const Shape square{.batch = 2, .heads = 3, .seqlen_q = 1000, .seqlen_k = 1000};
  const Problem full{.head_dim = 64};
  const Problem causal{.head_dim = 64, .causal = true};
  CHECK(flops(full, square) == 4.0 * 2 * 3 * 1000 * 1000 * 64);
  CHECK(flops(causal, square) == flops(full, square) / 2);
  CHECK(flops(Problem{.pass = Pass::backward, .head_dim = 64}, square) == 2.5 * flops(full, square));
  CHECK(flops(Problem{.head_dim = 64, .head_dim_v = 192}, square) == 2.0 * 2 * 3 * 1000 * 1000 * 256);
  // Causal with more keys than queries: the first query sees 3000 of the 4000 keys, the last all of them.
  const Shape longer{.heads = 1, .seqlen_q = 1000, .seqlen_k = 4000};
  CHECK(flops(causal, longer) == 4.0 * 1000 * 3500 * 64);
  // With fewer keys than queries: half of them a row, by convention, although the first rows see none.
  const Shape shorter{.heads = 1, .seqlen_q = 4000, .seqlen_k = 1000};
  CHECK(flops(causal, shorter) == 4.0 * 4000 * 500 * 64);
  CHECK(flops(full, Shape{.seqlen_q = 0, .seqlen_k = 5}) == 0);
  // No overflow of int: 2^31 tokens squared.
  CHECK(flops(full, Shape{.batch = 64, .heads = 64, .seqlen_q = 1 << 20, .seqlen_k = 1 << 20}) > 1e18);
}

TEST_CASE("every arch of NVRTC 13.0 has a target with sane limits") {
  for (const char* arch : {"sm_75", "sm_80", "sm_86", "sm_87", "sm_88", "sm_89", "sm_90", "sm_90a", "sm_100",
                           "sm_103", "sm_110", "sm_120", "sm_121"}) {
    CAPTURE(arch);
    const Target target = target_of(arch);
    CHECK(target.arch == arch);
    CHECK(target.capability == std::stoi(target.arch.substr(3)));
    CHECK(target.shared_per_cta + target.shared_reserved <= target.shared_per_sm);
    CHECK(target.shared_per_cta >= 64 * 1024);
    CHECK(target.registers_per_sm == 65536);
    CHECK(target.threads_per_sm % 256 == 0);
    CHECK(target.sm_count > 0);
    CHECK(target.l2_bytes > 0);
    CHECK(target.memory_gbps > 0);
    CHECK(target.ctas_per_sm >= 16);
  }
  // Not all is as on the largest: what a multiprocessor has of threads and CTAs.
  CHECK(target_of("sm_75").threads_per_sm == 1024);
  CHECK(target_of("sm_86").threads_per_sm == 1536);
  CHECK(target_of("sm_86").ctas_per_sm == 16);
  CHECK(target_of("sm_120").ctas_per_sm == 24);
  CHECK_THROWS_WITH_AS(
      target_of("sm_70"),
      "arch is \"sm_70\", may be sm_75, sm_80, sm_86, sm_87, sm_88, sm_89, sm_90, sm_90a, sm_100, "
      "sm_103, sm_110, sm_120, sm_121",
      Error);
  CHECK_THROWS_AS(target_of(""), Error);
  CHECK_THROWS_AS(target_of("SM_80"), Error);
}
