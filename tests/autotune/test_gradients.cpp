// The gradients' reference by finite differences of the forward reference, and the rule on right and wrong
// kernels.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "autotune/backward/inputs.hpp"
#include "autotune/backward/reference.hpp"
#include "autotune/backward/slopes.hpp"
#include "autotune/numeric.hpp"

using namespace flashjit;
using namespace flashjit::autotune;

namespace {

struct Tensors {
  HostTensor dq, dk, dv;
};

// The gradients as a perfect kernel would write them: blocks are all_gradients'.
Tensors to_tensors(const Problem& problem, const Shape& s, const HostGradients& g) {
  const auto write = [&](int rows, int heads, int dim, const std::vector<double>& values) {
    HostTensor tensor = poisoned(problem.dtype, s.batch, rows, heads, dim);
    std::size_t at = 0;
    for (int b = 0; b < s.batch; ++b) {
      for (int h = 0; h < heads; ++h) {
        for (int i = 0; i < rows; ++i) {
          const std::int64_t base =
              b * tensor.strides.batch + h * tensor.strides.head + i * tensor.strides.row;
          for (int x = 0; x < dim; ++x, ++at)
            store_element(problem.dtype, tensor.bytes.data(), base + x, static_cast<float>(values[at]));
        }
      }
    }
    return tensor;
  };
  return {write(s.seqlen_q, s.heads, problem.head_dim, g.dq),
          write(s.seqlen_k, s.kv_heads(), problem.head_dim, g.dk),
          write(s.seqlen_k, s.kv_heads(), problem.value_dim(), g.dv)};
}

HostGradientOutput output_of(const Tensors& t) {
  return {.dq = t.dq.bytes.data(), .dk = t.dk.bytes.data(), .dv = t.dv.bytes.data()};
}

}  // namespace

TEST_CASE("gradients agree with finite differences") {
  struct Case {
    Problem problem;
    Shape shape;
  };
  const std::array cases = {
      Case{{.dtype = DType::fp32, .head_dim = 8},
           {.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 3, .seqlen_k = 5}},
      Case{{.dtype = DType::fp32, .head_dim = 8, .head_dim_v = 16, .causal = true},
           {.batch = 2, .heads = 2, .heads_kv = 2, .seqlen_q = 5, .seqlen_k = 3}},
      Case{{.dtype = DType::fp32, .head_dim = 16, .head_dim_v = 8, .causal = true},
           {.batch = 1, .heads = 4, .heads_kv = 2, .seqlen_q = 3, .seqlen_k = 4}},
  };
  for (const Case& one : cases) {
    const Problem& problem = one.problem;
    const Shape& shape = one.shape;
    CAPTURE(describe(problem));
    BackwardInputs inputs = make_backward_inputs(problem, shape, InputKind::normal, 7);
    const HostBackward from = host_backward(problem, shape, inputs.forward, inputs.dout);
    const Tensors g = to_tensors(problem, shape, reference_gradients(from, all_gradients(shape)));
    Slopes slopes(from);
    const auto agree = [&](const HostTensor& gradient, int rows, int heads, int dim, auto slope_of) {
      for (int b = 0; b < shape.batch; ++b) {
        for (int i = 0; i < rows; ++i) {
          for (int h = 0; h < heads; ++h) {
            for (int x = (b + i + h) % 3; x < dim; x += 3) {
              const double want = slope_of(b, i, h, x);
              const double got = load_element(
                  DType::fp32, gradient.bytes.data(),
                  b * gradient.strides.batch + i * gradient.strides.row + h * gradient.strides.head + x);
              CHECK_MESSAGE(std::abs(got - want) < 2e-6, b, " ", i, " ", h, " ", x, ": ", got, " and ", want);
            }
          }
        }
      }
    };
    agree(g.dq, shape.seqlen_q, shape.heads, problem.head_dim,
          [&](auto... at) { return slopes.of_q(at...); });
    agree(g.dk, shape.seqlen_k, shape.kv_heads(), problem.head_dim,
          [&](auto... at) { return slopes.of_k(at...); });
    agree(g.dv, shape.seqlen_k, shape.kv_heads(), problem.value_dim(),
          [&](auto... at) { return slopes.of_v(at...); });
  }
}

TEST_CASE("slopes judge a backward pass, and catch one that is wrong, for inputs of every kind") {
  const Problem problem{.dtype = DType::bf16, .head_dim = 32, .causal = true};
  const Shape shape{.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 20, .seqlen_k = 31};
  for (const InputKind kind :
       {InputKind::normal, InputKind::peaky, InputKind::growing, InputKind::late_giant, InputKind::crowd}) {
    CAPTURE(std::string(to_string(kind)));
    const BackwardInputs inputs = make_backward_inputs(problem, shape, kind, 23);
    const HostBackward from = host_backward(problem, shape, inputs.forward, inputs.dout);
    const GradientBlocks blocks = all_gradients(shape);
    const HostGradients right = reference_gradients(from, blocks);
    const auto judge = [&](const HostGradients& g) {
      const Tensors tensors = to_tensors(problem, shape, g);
      const GradientCheck rule = acceptable_gradients(from, blocks, output_of(tensors));
      return compare_with_slopes(from, output_of(tensors), rule, 20, 5);
    };
    const Check good = judge(right);
    CHECK_MESSAGE(good.ok, good.message);
    CHECK(good.rows == 60);
    HostGradients wrong = right;
    for (double& x : wrong.dv) x *= 1.5;
    CHECK(judge(wrong).message.find("dv is ") == 0);
  }
}

TEST_CASE("rows that see no key, keys that no row sees, and empty sides") {
  const Problem problem{.dtype = DType::fp32, .head_dim = 8, .causal = true};
  for (const auto& [sq, sk] : {std::pair{5, 2}, std::pair{4, 0}, std::pair{0, 4}}) {
    const Shape shape{.batch = 1, .heads = 2, .seqlen_q = sq, .seqlen_k = sk};
    const BackwardInputs inputs = make_backward_inputs(problem, shape, InputKind::normal, 3);
    const HostGradients g =
        reference_gradients(host_backward(problem, shape, inputs.forward, inputs.dout), all_gradients(shape));
    REQUIRE(g.dq.size() == static_cast<std::size_t>(2 * 8 * sq));
    REQUIRE(g.dk.size() == static_cast<std::size_t>(2 * 8 * sk));
    for (int i = 0; i < 8 * std::max(0, sq - sk); ++i) CHECK(g.dq[i] == 0);
    if (sq == 0) {
      for (const double x : g.dv) CHECK(x == 0);
    }
  }
}

TEST_CASE("given o and lse, a few rows cost a few rows and come out the same") {
  const Problem problem{.dtype = DType::bf16, .head_dim = 32, .head_dim_v = 16, .causal = true};
  const Shape shape{.batch = 2, .heads = 4, .heads_kv = 2, .seqlen_q = 70, .seqlen_k = 90};
  const BackwardInputs inputs = make_backward_inputs(problem, shape, InputKind::normal, 5);
  HostBackward from = host_backward(problem, shape, inputs.forward, inputs.dout);
  const auto truth = reference_gradients(from, all_gradients(shape));
  from.o = inputs.o.bytes.data();
  from.lse = inputs.lse.data();
  const auto whole = reference_gradients(from, all_gradients(shape));
  double most = 0;
  for (std::size_t i = 0; i < truth.dq.size(); ++i)
    most = std::max(most, std::abs(truth.dq[i] - whole.dq[i]));
  CHECK(most > 0);      // o is rounded,
  CHECK(most < 0.005);  // and no more than that
  const GradientBlocks few{{{1, 2, 60, 8}}, {{1, 1, 20, 4}}};
  const auto part = reference_gradients(from, few);
  REQUIRE(part.dq.size() == 8 * 32);
  REQUIRE(part.dv.size() == 4 * 16);
  for (std::size_t i = 0; i < part.dq.size(); ++i)
    CHECK(part.dq[i] == whole.dq[((1 * 4 + 2) * 70 + 60) * 32 + i]);
  for (std::size_t i = 0; i < part.dk.size(); ++i)
    CHECK(part.dk[i] == whole.dk[((1 * 2 + 1) * 90 + 20) * 32 + i]);
  for (std::size_t i = 0; i < part.dv.size(); ++i)
    CHECK(part.dv[i] == whole.dv[((1 * 2 + 1) * 90 + 20) * 16 + i]);
}

TEST_CASE("where one key has the weight, the rule knows that a pass is handed O as it was stored") {
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    for (const auto& [sq, sk] : {std::pair{1, 129}, std::pair{129, 1}, std::pair{40, 40}}) {
      for (const InputKind kind : {InputKind::normal, InputKind::growing, InputKind::late_giant}) {
        const Problem problem{.dtype = dtype, .head_dim = 112};
        const Shape shape{.batch = 2, .heads = 3, .heads_kv = 1, .seqlen_q = sq, .seqlen_k = sk};
        CAPTURE(describe(problem));
        CAPTURE(std::string(to_string(kind)));
        CAPTURE(shape.seqlen_q);
        for (std::uint64_t seed = 1; seed <= 8; ++seed) {
          const BackwardInputs inputs = make_backward_inputs(problem, shape, kind, seed);
          HostBackward given = host_backward(problem, shape, inputs.forward, inputs.dout);
          const GradientBlocks blocks = all_gradients(shape);
          const HostGradients expected = reference_gradients(given, blocks);
          const HostGradients simple = plain_gradients(given, blocks);
          given.o = inputs.o.bytes.data();
          given.lse = inputs.lse.data();
          const Tensors best = to_tensors(problem, shape, reference_gradients(given, blocks));
          const GradientCheck check = acceptable_gradients(given, blocks, expected, simple, output_of(best));
          CHECK_MESSAGE(check.ok(), check.worst().message);
          // And no more than that: what it allows is a small part of the roundings of dP, which is of the
          // size of sqrt(head_dim) * max|v| here, even where dS is 0 throughout.
          if (sk == 1 && dtype != DType::fp32) CHECK(check.dk.allowed < 0.01);
        }
      }
    }
  }
}

TEST_CASE("the rule lets a kernel's roundings pass and catches what is wrong") {
  const Shape shape{.batch = 1, .heads = 2, .heads_kv = 1, .seqlen_q = 83, .seqlen_k = 129};
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    for (const InputKind kind :
         {InputKind::normal, InputKind::peaky, InputKind::growing, InputKind::late_giant, InputKind::tiny}) {
      for (const bool causal : {false, true}) {
        const Problem problem{.dtype = dtype, .head_dim = 64, .causal = causal};
        CAPTURE(describe(problem));
        CAPTURE(std::string(to_string(kind)));
        const BackwardInputs inputs = make_backward_inputs(problem, shape, kind, 11);
        const HostBackward from = host_backward(problem, shape, inputs.forward, inputs.dout);
        const GradientBlocks blocks = all_gradients(shape);
        const HostGradients expected = reference_gradients(from, blocks);
        const HostGradients simple = plain_gradients(from, blocks);
        const auto check = [&](const HostGradients& g) {
          const Tensors tensors = to_tensors(problem, shape, g);
          return acceptable_gradients(from, blocks, expected, simple, output_of(tensors));
        };
        const GradientCheck right = check(expected);
        CHECK_MESSAGE(right.ok(), right.worst().message);
        // What a kernel works from: o and lse as the forward pass left them, rounded.
        HostBackward given = from;
        given.o = inputs.o.bytes.data();
        given.lse = inputs.lse.data();
        const GradientCheck rounded = check(reference_gradients(given, blocks));
        CHECK_MESSAGE(rounded.ok(), rounded.worst().message);
        if (kind != InputKind::normal) continue;
        HostGradients lost = expected;
        const double most = *std::max_element(lost.dk.begin(), lost.dk.end());
        lost.dk[64 * 30 + 3] += most / 2;
        CHECK_FALSE(check(lost).ok());
        CHECK(check(lost).dk.message.find("dk differs") == 0);
        lost = expected;
        lost.dq[5] = std::nan("");
        CHECK(check(lost).worst().message.find("dq differs from float64 by inf") == 0);
      }
    }
  }
}
