// Upload, launch, download, judge.
#include "tests/support/gradient_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autotune/numeric.hpp"
#include "tests/support/on_device.hpp"

namespace flashjit::test {
namespace {

using autotune::HostTensor;

struct Strided {
  autotune::BackwardLayout inputs;
  Strides dq, dk, dv;
};

// As attention_case.cpp lays out the forward pass; the gradients have gaps of their own.
Strided strides_of(const AttentionCase& one) {
  const std::int64_t d = one.problem.head_dim;
  const std::int64_t dv = one.problem.value_dim();
  if (one.layout == Layout::shared) {
    return {.inputs = {.forward = {.q = {}, .k = {.row = d}, .v = {.row = dv}}, .o = {}, .dout = {}},
            .dq = {},
            .dk = {},
            .dv = {}};
  }
  if (one.layout != Layout::strided) return {};
  const std::int64_t kv = one.shape.kv_heads();
  const auto transposed = [&](std::int64_t row, std::int64_t rows) {
    return Strides{.batch = one.shape.heads * rows * row + 64, .head = rows * row, .row = row};
  };
  const auto slice = [&](std::int64_t gap) {
    return Strides{.batch = one.shape.seqlen_k * kv * (d + dv + gap) + 8,
                   .head = d + dv + gap,
                   .row = kv * (d + dv + gap)};
  };
  return {
      .inputs = {.forward = {.q = transposed(d + 8, one.shape.seqlen_q + 1), .k = slice(0), .v = slice(0)},
                 .o = transposed(dv + 16, one.shape.seqlen_q + 3),
                 .dout = transposed(dv + 8, one.shape.seqlen_q + 2)},
      .dq = transposed(d + 24, one.shape.seqlen_q + 1),
      .dk = slice(8),
      .dv = slice(16)};
}

// Standard normal o, and an LSE that makes P sum to about 1 a row.
void make_up_results(const AttentionCase& one, const Strides& o_strides, autotune::BackwardInputs& inputs) {
  const Shape of_queries{
      .batch = one.shape.batch, .heads = one.shape.heads, .seqlen_q = 0, .seqlen_k = one.shape.seqlen_q};
  inputs.o = autotune::make_inputs(one.problem, of_queries, autotune::InputKind::normal, one.seed + 17,
                                   {.q = {}, .k = {}, .v = o_strides})
                 .v;
  const auto rows = static_cast<std::size_t>(one.shape.batch) * one.shape.heads * one.shape.seqlen_q;
  inputs.lse.assign(rows, std::log(static_cast<float>(std::max(1, one.shape.seqlen_k))) + 0.5F);
  for (std::size_t i = 0; i < rows; ++i) {
    if (static_cast<int>(i % one.shape.seqlen_q) < one.blind)
      inputs.lse[i] = -std::numeric_limits<float>::infinity();
  }
  autotune::HostTensor& q = inputs.forward.q;
  for (int batch = 0; batch < one.shape.batch; ++batch) {
    for (std::int64_t row = 0; row < std::int64_t{one.endless_rows} * one.shape.heads; ++row) {
      autotune::store_element(one.problem.dtype, q.bytes.data(),
                              batch * q.strides.batch + row * q.strides.head,
                              std::numeric_limits<float>::infinity());
    }
  }
}

}  // namespace

Gradients::Gradients(const AttentionCase& one, int rows, int reference_threads)
    : case_(one), sampled_(rows > 0) {
  const Problem& problem = one.problem;
  const Shape& shape = one.shape;
  const Strided strides = strides_of(one);
  if (sampled_) {
    inputs_.forward = autotune::make_inputs(problem, shape, one.inputs, one.seed, strides.inputs.forward);
    inputs_.dout = autotune::make_dout(problem, shape, one.seed, strides.inputs.dout);
    make_up_results(one, strides.inputs.o, inputs_);
  } else {
    inputs_ = autotune::make_backward_inputs(problem, shape, one.inputs, one.seed, strides.inputs, one.scale,
                                             reference_threads);
  }
  dq_ = autotune::poisoned(problem.dtype, shape.batch, shape.seqlen_q, shape.heads, problem.head_dim,
                           strides.dq);
  dk_ = autotune::poisoned(problem.dtype, shape.batch, shape.seqlen_k, shape.kv_heads(), problem.head_dim,
                           strides.dk);
  dv_ = autotune::poisoned(problem.dtype, shape.batch, shape.seqlen_k, shape.kv_heads(), problem.value_dim(),
                           strides.dv);
  blocks_ = sampled_ ? autotune::sample_gradients(shape, (rows + 15) / 16, 16, one.seed)
                     : autotune::all_gradients(shape);
  reference_ = autotune::reference_gradients(call(), blocks_, reference_threads);
  plain_ = autotune::plain_gradients(call(), blocks_, reference_threads);
}

autotune::HostBackward Gradients::call() const {
  autotune::HostBackward call =
      autotune::host_backward(case_.problem, case_.shape, inputs_.forward, inputs_.dout);
  call.attention.scale = case_.scale;
  if (sampled_) {
    call.o = inputs_.o.bytes.data();
    call.o_strides = inputs_.o.strides;
    call.lse = inputs_.lse.data();
  }
  return call;
}

Gradients::Result Gradients::run(Engine& engine, const PlanOptions& options, bool deterministic) const {
  Problem problem = case_.problem;
  problem.deterministic = deterministic;
  const Shape& shape = case_.shape;
  const bool far = case_.layout == Layout::far;
  const int d = problem.head_dim;
  const int value_dim = problem.value_dim();
  const auto of_queries = [&](int columns) {
    return Extent{shape.batch, shape.seqlen_q, shape.heads, columns};
  };
  const auto of_keys = [&](int columns) {
    return Extent{shape.batch, shape.seqlen_k, shape.kv_heads(), columns};
  };
  const DType dtype = problem.dtype;
  const OnDevice q(engine, dtype, inputs_.forward.q, of_queries(d), false);
  const OnDevice k(engine, dtype, inputs_.forward.k, of_keys(d), far);
  const OnDevice v(engine, dtype, inputs_.forward.v, of_keys(value_dim), far);
  const OnDevice o(engine, dtype, inputs_.o, of_queries(value_dim), far);
  const OnDevice dout(engine, dtype, inputs_.dout, of_queries(value_dim), false);
  const OnDevice dq(engine, dtype, dq_, of_queries(d), false, OnDevice::Role::output);
  const OnDevice dk(engine, dtype, dk_, of_keys(d), far, OnDevice::Role::output);
  const OnDevice dv(engine, dtype, dv_, of_keys(value_dim), false, OnDevice::Role::output);
  const std::size_t lse_bytes = inputs_.lse.size() * sizeof(float);
  const Buffer lse = engine.allocate(lse_bytes);
  engine.upload(lse, inputs_.lse.data(), lse_bytes);

  const Plan plan = engine.plan(problem, shape, options);
  const Buffer workspace = poisoned_memory(engine, plan.workspace_bytes(shape));
  plan.backward({.q = q.data(),
                 .k = k.data(),
                 .v = v.data(),
                 .o = o.data(),
                 .dout = dout.data(),
                 .lse = static_cast<const float*>(lse.data()),
                 .dq = dq.data(),
                 .dk = dk.data(),
                 .dv = dv.data(),
                 .q_strides = q.strides(),
                 .k_strides = k.strides(),
                 .v_strides = v.strides(),
                 .o_strides = o.strides(),
                 .dout_strides = dout.strides(),
                 .dq_strides = dq.strides(),
                 .dk_strides = dk.strides(),
                 .dv_strides = dv.strides(),
                 .scale = case_.scale,
                 .workspace = workspace.data()});
  Result result{.check = {}, .dq = dq_, .dk = dk_, .dv = dv_, .schedule = plan.origin().schedule};
  dq.download(result.dq);
  dk.download(result.dk);
  dv.download(result.dv);

  result.check = autotune::acceptable_gradients(call(), blocks_, reference_, plain_,
                                                {.dq = result.dq.bytes.data(),
                                                 .dk = result.dk.bytes.data(),
                                                 .dv = result.dv.bytes.data(),
                                                 .dq_strides = result.dq.strides,
                                                 .dk_strides = result.dk.strides,
                                                 .dv_strides = result.dv.strides})
                     .worst();
  const auto bytes = static_cast<std::size_t>(size_of(dtype));
  const auto check_gaps = [&](const char* name, const HostTensor& before, const HostTensor& after,
                              const Extent& extent) {
    if (gaps_untouched(before, after, extent, bytes)) return;
    result.check.ok = false;
    result.check.message += fmt::format(" memory between the rows of {} was written", name);
  };
  if (!far) {
    check_gaps("dq", dq_, result.dq, of_queries(d));
    check_gaps("dk", dk_, result.dk, of_keys(d));
    check_gaps("dv", dv_, result.dv, of_keys(value_dim));
  }
  return result;
}

}  // namespace flashjit::test
