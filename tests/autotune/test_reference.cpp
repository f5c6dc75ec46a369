// The reference by hand on tiny cases, and the acceptance rule on right and wrong kernels.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "autotune/inputs.hpp"
#include "autotune/numeric.hpp"
#include "autotune/reference.hpp"

using namespace flashjit;
using namespace flashjit::autotune;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// An output tensor holding `result`, rounded to the dtype: what a perfect kernel would write.
HostTensor rounded(const Problem& problem, const Shape& shape, std::span<const RowBlock> blocks,
                   const HostResult& result) {
  const int dv = problem.value_dim();
  HostTensor o = poisoned(problem.dtype, shape.batch, shape.seqlen_q, shape.heads, dv);
  std::size_t at = 0;
  for (const RowBlock& block : blocks) {
    for (int r = 0; r < block.count; ++r, ++at) {
      const auto base =
          block.batch * o.strides.batch + (block.first + r) * o.strides.row + block.head * o.strides.head;
      for (int x = 0; x < dv; ++x) {
        store_element(problem.dtype, o.bytes.data(), base + x, static_cast<float>(result.out[at * dv + x]));
      }
    }
  }
  return o;
}

std::vector<float> lse_of(const Shape& shape, std::span<const RowBlock> blocks, const HostResult& result) {
  std::vector<float> lse(static_cast<std::size_t>(shape.batch) * shape.heads * shape.seqlen_q);
  std::size_t at = 0;
  for (const RowBlock& block : blocks) {
    for (int r = 0; r < block.count; ++r, ++at) {
      lse[(static_cast<std::size_t>(block.batch) * shape.heads + block.head) * shape.seqlen_q + block.first +
          r] = static_cast<float>(result.lse[at]);
    }
  }
  return lse;
}

}  // namespace

TEST_CASE("two keys by hand") {
  // d = 8, one query (1, 0 …); keys (2, 0 …) and (0, 0 …); scale 0.5: scores 1 and 0.
  const Problem problem{.dtype = DType::fp32, .head_dim = 8};
  const Shape shape{.batch = 1, .heads = 1, .seqlen_q = 1, .seqlen_k = 2};
  std::vector<float> q(8), k(16), v(16);
  q[0] = 1;
  k[0] = 2;
  v[0] = 10;
  v[8] = 20;
  v[9] = 1;
  HostAttention a{
      .problem = problem, .shape = shape, .q = q.data(), .k = k.data(), .v = v.data(), .scale = 0.5f};
  const auto result = reference(a, all_rows(shape));
  const double w0 = std::exp(1.0) / (std::exp(1.0) + 1);
  CHECK(result.out[0] == doctest::Approx(10 * w0 + 20 * (1 - w0)).epsilon(1e-14));
  CHECK(result.out[1] == doctest::Approx(1 - w0).epsilon(1e-14));
  CHECK(result.lse[0] == doctest::Approx(std::log(std::exp(1.0) + 1)).epsilon(1e-14));
  a.scale = {};
  CHECK(reference(a, all_rows(shape)).lse[0] ==
        doctest::Approx(std::log(std::exp(2 / std::sqrt(8.0)) + 1)).epsilon(1e-7));
}

TEST_CASE("causal is aligned at the bottom right, and a row without keys gives 0 and -inf") {
  const Problem problem{.dtype = DType::fp32, .head_dim = 8, .causal = true};
  // All scores are 0, so a row's output is the mean of the values it sees: v[j] = j.
  for (const auto& [sq, sk] : {std::pair{2, 5}, std::pair{5, 2}, std::pair{4, 4}, std::pair{3, 0}}) {
    const Shape shape{.batch = 1, .heads = 1, .seqlen_q = sq, .seqlen_k = sk};
    std::vector<float> q(8 * sq), k(8 * sk), v(8 * sk);
    for (int j = 0; j < sk; ++j) v[8 * j] = static_cast<float>(j);
    const HostAttention a{.problem = problem, .shape = shape, .q = q.data(), .k = k.data(), .v = v.data()};
    const auto result = reference(a, all_rows(shape));
    for (int i = 0; i < sq; ++i) {
      const int keys = i + sk - sq + 1;
      if (keys <= 0) {
        CHECK(result.out[8 * i] == 0);
        CHECK(result.lse[i] == -kInf);
      } else {
        CHECK(result.out[8 * i] == doctest::Approx((keys - 1) / 2.0));
        CHECK(result.lse[i] == doctest::Approx(std::log(keys)));
      }
    }
  }
}

TEST_CASE("GQA, head_dim_v and strides name the same numbers as packed copies of them") {
  const Problem problem{.dtype = DType::fp16, .head_dim = 16, .head_dim_v = 24};
  const Shape gqa{.batch = 2, .heads = 4, .heads_kv = 2, .seqlen_q = 9, .seqlen_k = 11};
  const Inputs packed = make_inputs(problem, gqa, InputKind::normal, 3);
  InputLayout layout;
  layout.q = {.batch = 4 * 9 * 16 + 8, .head = 9 * 16, .row = 16};  // (batch, heads, seqlen, dim), padded
  layout.k = {.batch = 11 * 100, .head = 40, .row = 100};
  layout.v = {.batch = 24, .head = 48, .row = 96};
  const Inputs strided = make_inputs(problem, gqa, InputKind::normal, 3, layout);
  const auto blocks = all_rows(gqa, 4);
  const auto one = reference(host_attention(problem, gqa, packed), blocks, 1);
  const auto two = reference(host_attention(problem, gqa, strided), blocks, 3);
  CHECK(one.out == two.out);
  CHECK(one.lse == two.lse);

  // Heads 2 and 3 read KV head 1: the same as MHA on that head alone.
  const Shape single{.batch = 1, .heads = 1, .seqlen_q = 9, .seqlen_k = 11};
  HostAttention part = host_attention(problem, gqa, packed);
  part.shape = single;
  part.q = packed.q.bytes.data() + 2 * (3 * packed.q.strides.head);
  part.k = packed.k.bytes.data() + 2 * packed.k.strides.head;
  part.v = packed.v.bytes.data() + 2 * packed.v.strides.head;
  const std::vector<RowBlock> third = {{0, 3, 0, 9}};
  CHECK(reference(part, all_rows(single)).out == reference(host_attention(problem, gqa, packed), third).out);
}

TEST_CASE("the plain computation is near the reference, by the dtype's precision") {
  for (const DType dtype : {DType::fp16, DType::bf16, DType::fp32}) {
    const Problem problem{.dtype = dtype, .head_dim = 64};
    const Shape shape{.batch = 1, .heads = 2, .seqlen_q = 40, .seqlen_k = 70};
    for (const InputKind kind :
         {InputKind::normal, InputKind::peaky, InputKind::growing, InputKind::late_giant, InputKind::tiny}) {
      const Inputs inputs = make_inputs(problem, shape, kind, 11);
      const auto a = host_attention(problem, shape, inputs);
      const auto blocks = all_rows(shape);
      const auto want = reference(a, blocks);
      const auto simple = plain(a, blocks);
      const HostTensor o = rounded(problem, shape, blocks, simple);
      const auto lse = lse_of(shape, blocks, want);
      const Check check = acceptable(a, blocks, want, simple, {.o = o.bytes.data(), .lse = lse.data()});
      CHECK_MESSAGE(check.ok, to_string(kind), ": ", check.message);
      CHECK(check.rows == 80);
      CHECK(check.plain_error < (dtype == DType::fp32 ? 2e-5 : dtype == DType::fp16 ? 2e-2 : 0.15));
    }
  }
}

TEST_CASE("the rule rejects what is wrong") {
  const Problem problem{.dtype = DType::bf16, .head_dim = 64, .causal = true};
  const Shape shape{.batch = 2, .heads = 2, .seqlen_q = 70, .seqlen_k = 70};
  const Inputs inputs = make_inputs(problem, shape, InputKind::normal, 5);
  const auto a = host_attention(problem, shape, inputs);
  const auto blocks = all_rows(shape);
  const auto want = reference(a, blocks);
  HostTensor right = rounded(problem, shape, blocks, want);
  std::vector<float> lse = lse_of(shape, blocks, want);
  CHECK(acceptable(a, blocks, {.o = right.bytes.data(), .lse = lse.data()}).ok);

  SUBCASE("a missing mask") {
    auto unmasked = a;
    unmasked.problem.causal = false;
    const HostTensor o = rounded(problem, shape, blocks, reference(unmasked, blocks));
    const Check check = acceptable(a, blocks, {.o = o.bytes.data()});
    CHECK_FALSE(check.ok);
    CHECK(check.message.find("output differs") == 0);
  }
  SUBCASE("a scale that is off by a percent") {
    auto scaled = a;
    scaled.scale = 1.01f / 8;
    const auto result = reference(scaled, blocks);
    const auto other = lse_of(shape, blocks, result);
    const Check check = acceptable(a, blocks, {.o = right.bytes.data(), .lse = other.data()});
    CHECK_FALSE(check.ok);
    CHECK(check.message.find("LSE differs") == 0);
  }
  SUBCASE("one element left as it was poisoned") {
    store_element(DType::bf16, right.bytes.data(), 2 * 70 * 64 + 17, std::nanf(""));
    const Check check = acceptable(a, blocks, {.o = right.bytes.data(), .lse = lse.data()});
    CHECK_FALSE(check.ok);
    CHECK(std::isinf(check.max_error));
  }
  SUBCASE("an LSE that is NaN, or finite where no key is seen") {
    lse[5] = std::nanf("");
    CHECK_FALSE(acceptable(a, blocks, {.o = right.bytes.data(), .lse = lse.data()}).ok);
  }
}

TEST_CASE("a NaN in q is the row's result, and no other row's") {
  const Shape shape{.batch = 1, .heads = 1, .seqlen_q = 3, .seqlen_k = 4};
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const Problem problem{.dtype = dtype, .head_dim = 8};
    Inputs inputs = make_inputs(problem, shape, InputKind::normal, 7);
    store_element(dtype, inputs.q.bytes.data(), inputs.q.strides.row, std::nanf(""));
    const auto a = host_attention(problem, shape, inputs);
    const auto blocks = all_rows(shape);
    for (const HostResult& result : {reference(a, blocks), plain(a, blocks)}) {
      for (int row = 0; row < 3; ++row) {
        CHECK(std::isnan(result.out[8 * row]) == (row == 1));
        CHECK(std::isnan(result.lse[row]) == (row == 1));
      }
    }
    const HostTensor o = rounded(problem, shape, blocks, reference(a, blocks));
    const auto lse = lse_of(shape, blocks, reference(a, blocks));
    CHECK(acceptable(a, blocks, {.o = o.bytes.data(), .lse = lse.data()}).ok);
  }
}

TEST_CASE("sampled blocks lie inside, hold the corners, and repeat with the seed") {
  const Shape shape{.batch = 3, .heads = 8, .seqlen_q = 1000, .seqlen_k = 10};
  const auto blocks = sample_rows(shape, 12, 16, 1);
  CHECK(blocks.size() == 12);
  CHECK(blocks[0].first == 0);
  CHECK(blocks[3].first == 984);
  CHECK(blocks[3].batch == 2);
  for (const RowBlock& block : blocks) {
    CHECK(block.first + block.count <= 1000);
    CHECK((block.head < 8 && block.batch < 3));
  }
  const auto again = sample_rows(shape, 12, 16, 1);
  for (std::size_t i = 0; i < blocks.size(); ++i) CHECK(again[i].first == blocks[i].first);
  CHECK(sample_rows({.batch = 1, .heads = 1, .seqlen_q = 5, .seqlen_k = 5}, 8, 16, 1).size() == 1);
  CHECK(sample_rows({.batch = 1, .heads = 1, .seqlen_q = 0, .seqlen_k = 5}, 8, 16, 1).empty());
}
