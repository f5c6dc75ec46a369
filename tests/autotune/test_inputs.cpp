// Random inputs: their distribution, their sameness everywhere, and what each kind is for.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "autotune/inputs.hpp"
#include "autotune/numeric.hpp"
#include "autotune/reference.hpp"
#include "flashjit/error.hpp"

using namespace flashjit;
using namespace flashjit::autotune;

TEST_CASE("normal numbers have the moments of the normal distribution") {
  constexpr int kCount = 1 << 20;
  std::vector<float> x(kCount);
  fill_normal(DType::fp32, x.data(), kCount, 42);
  double mean = 0, square = 0, fourth = 0, neighbour = 0;
  for (int i = 0; i < kCount; ++i) {
    mean += x[i];
    square += double{x[i]} * x[i];
    fourth += std::pow(double{x[i]}, 4);
    neighbour += double{x[i]} * x[(i + 1) % kCount];
  }
  CHECK(std::abs(mean / kCount) < 0.004);
  CHECK(square / kCount == doctest::Approx(1).epsilon(0.01));
  CHECK(fourth / kCount == doctest::Approx(3).epsilon(0.02));
  CHECK(std::abs(neighbour / kCount) < 0.004);
}

TEST_CASE("the numbers are part of the contract: the same on every machine") {
  std::vector<float> x(4);
  fill_normal(DType::fp32, x.data(), 4, 1);
  std::vector<std::uint16_t> h(4);
  fill_normal(DType::bf16, h.data(), 4, 1);
  for (int i = 0; i < 4; ++i) CHECK(from_bf16(h[i]) == doctest::Approx(x[i]).epsilon(0.005));
  CHECK(x[0] == doctest::Approx(-0.352244).epsilon(1e-5));
  std::vector<std::uint16_t> again(3'000'000), parts(3'000'000);
  fill_normal(DType::fp16, again.data(), 3'000'000, 9);
  fill_normal(DType::fp16, parts.data(), 1'000'001, 9);
  CHECK(std::equal(parts.begin(), parts.begin() + 1'000'001, again.begin()));
}

TEST_CASE("what the kinds do to the scores") {
  const Problem problem{.dtype = DType::fp32, .head_dim = 64};
  const Shape shape{.batch = 1, .heads = 1, .seqlen_q = 4, .seqlen_k = 512};
  const auto lse = [&](InputKind kind) {
    const Inputs inputs = make_inputs(problem, shape, kind, 2);
    return reference(host_attention(problem, shape, inputs), all_rows(shape)).lse;
  };
  for (const double value : lse(InputKind::normal))
    CHECK(value == doctest::Approx(std::log(512) + 0.5).epsilon(0.1));
  for (const double value : lse(InputKind::peaky)) CHECK(value > 10);
  for (const double value : lse(InputKind::growing)) CHECK(value > 54);
  for (const double value : lse(InputKind::late_giant)) CHECK(value > 90);
  for (const double value : lse(InputKind::tiny))
    CHECK(value == doctest::Approx(std::log(512)).epsilon(1e-4));
}

TEST_CASE("a crowd: one giant, many equal keys far below it, and the rest at nothing") {
  const Problem problem{.dtype = DType::fp32, .head_dim = 64};
  const Shape shape{.batch = 1, .heads = 1, .seqlen_q = 4, .seqlen_k = 512};
  const Inputs inputs = make_inputs(problem, shape, InputKind::crowd, 2);
  const std::vector<double> lse = reference(host_attention(problem, shape, inputs), all_rows(shape)).lse;
  REQUIRE(lse.size() == 4);
  for (int row = 0; row < shape.seqlen_q; ++row) {
    const double size = load_element(DType::fp32, inputs.q.bytes.data(), 64 * row) * 16 / 8;  // near 1
    CHECK(size == doctest::Approx(1).epsilon(0.5));
    CHECK(
        lse[row] ==
        doctest::Approx(std::log(std::exp(14 * size) + 447 * std::exp(7.4140625 * size) + 64)).epsilon(1e-5));
  }
}

TEST_CASE("names, and gaps that hold NaN") {
  CHECK(parse_input_kind("late-giant") == InputKind::late_giant);
  CHECK_THROWS_AS(parse_input_kind("zeros"), Error);
  const Problem problem{.dtype = DType::fp16, .head_dim = 8};
  const Shape shape{.batch = 1, .heads = 1, .seqlen_q = 2, .seqlen_k = 2};
  const Inputs inputs =
      make_inputs(problem, shape, InputKind::normal, 1, {.q = {.batch = 32, .head = 16, .row = 16}});
  CHECK(inputs.q.bytes.size() == 2 * 24);
  CHECK_FALSE(std::isnan(load_element(DType::fp16, inputs.q.bytes.data(), 7)));
  CHECK(std::isnan(load_element(DType::fp16, inputs.q.bytes.data(), 8)));
  CHECK_FALSE(std::isnan(load_element(DType::fp16, inputs.q.bytes.data(), 16)));
}

TEST_CASE("without rows or batches there is nothing to make or to look at, however many heads there are") {
  constexpr int kMost = std::numeric_limits<int>::max();
  const Problem problem{.dtype = DType::fp32};
  const Shape no_rows{.batch = kMost, .heads = kMost};
  const Shape no_batches{.batch = 0, .heads = kMost, .seqlen_q = kMost - 512, .seqlen_k = kMost - 512};
  for (const Shape& shape : {no_rows, no_batches}) {
    const Inputs inputs = make_inputs(problem, shape, InputKind::normal, 1);
    for (const HostTensor* tensor : {&inputs.q, &inputs.k, &inputs.v}) CHECK(tensor->bytes.empty());
    CHECK(all_rows(shape).empty());
  }
}
