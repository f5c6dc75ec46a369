// Upload, launch, download, judge.
#include "tests/support/attention_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "autotune/numeric.hpp"
#include "tests/support/on_device.hpp"

namespace flashjit::test {
namespace {

using autotune::HostTensor;

struct Strided {
  Strides q, k, v, o;
};

Strided strides_of(const AttentionCase& one) {
  if (one.layout == Layout::shared) {
    return {.k = {.row = one.problem.head_dim}, .v = {.row = one.problem.value_dim()}};
  }
  if (one.layout != Layout::strided) return {};
  const std::int64_t d = one.problem.head_dim;
  const std::int64_t dv = one.problem.value_dim();
  const std::int64_t kv = one.shape.kv_heads();
  const auto transposed = [&](std::int64_t row, std::int64_t rows) {
    return Strides{.batch = one.shape.heads * rows * row + 64, .head = rows * row, .row = row};
  };
  const Strides slice{.batch = one.shape.seqlen_k * kv * (d + dv) + 8, .head = d + dv, .row = kv * (d + dv)};
  return {.q = transposed(d + 8, one.shape.seqlen_q + 1),
          .k = slice,
          .v = slice,
          .o = transposed(dv + 16, one.shape.seqlen_q + 3)};
}

// All elements of a packed tensor.
void scale_elements(DType dtype, HostTensor& tensor, int exponent) {
  const auto count = static_cast<std::int64_t>(tensor.bytes.size()) / size_of(dtype);
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = autotune::load_element(dtype, tensor.bytes.data(), i);
    autotune::store_element(dtype, tensor.bytes.data(), i, std::ldexp(value, exponent));
  }
}

// The first column of a packed tensor, from row `first` of each sequence on.
void set_first_column(const AttentionCase& one, HostTensor& tensor, int seqlen, int heads, int first,
                      float value) {
  const std::int64_t dim = tensor.strides.head;
  for (std::int64_t row = 0; row < std::int64_t{one.shape.batch} * seqlen * heads; ++row) {
    if (row / heads % seqlen >= first)
      autotune::store_element(one.problem.dtype, tensor.bytes.data(), row * dim, value);
  }
}

}  // namespace

const char* to_string(Layout layout) {
  switch (layout) {
    case Layout::packed:
      return "packed";
    case Layout::strided:
      return "strided";
    case Layout::shared:
      return "shared";
    case Layout::far:
      return "far";
  }
  return "?";
}

std::string describe(const AttentionCase& one) {
  std::string text =
      fmt::format("{} {} {} {} seed {}", flashjit::describe(one.problem), flashjit::describe(one.shape),
                  to_string(one.layout), to_string(one.inputs), one.seed);
  if (one.scale.has_value()) text += fmt::format(" scale {}", *one.scale);
  if (one.silent > 0) text += fmt::format(" {} keys silent for {}", one.silent, one.silent_query);
  if (one.low > 0) text += fmt::format(" {} low keys", one.low);
  if (one.value_exponent != 0) text += fmt::format(" v times 2^{}", one.value_exponent);
  if (one.endless > 0) text += fmt::format(" {} infinite values", one.endless);
  if (one.blind > 0) text += fmt::format(" {} blind rows", one.blind);
  if (one.endless_rows > 0) text += fmt::format(" {} infinite rows", one.endless_rows);
  return text;
}

Attention::Attention(const AttentionCase& one, int rows, int reference_threads) : case_(one) {
  const Strided strides = strides_of(one);
  inputs_ = autotune::make_inputs(one.problem, one.shape, one.inputs, one.seed,
                                  {.q = strides.q, .k = strides.k, .v = strides.v});
  if (one.silent > 0) {
    set_first_column(one, inputs_.q, one.shape.seqlen_q, one.shape.heads, 0, one.silent_query);
    set_first_column(one, inputs_.k, one.shape.seqlen_k, one.shape.kv_heads(),
                     one.shape.seqlen_k - one.silent, -std::numeric_limits<float>::infinity());
  }
  if (one.low > 0) {
    const double bits = 7.7, log2 = std::log(2.0) * std::sqrt(one.problem.head_dim);  // by the default scale
    std::fill(inputs_.k.bytes.begin(), inputs_.k.bytes.end(), std::byte{0});
    set_first_column(one, inputs_.q, one.shape.seqlen_q, one.shape.heads, 0, 1);
    set_first_column(one, inputs_.k, one.shape.seqlen_k, one.shape.kv_heads(), one.shape.seqlen_k - one.low,
                     static_cast<float>(-bits * log2));
  }
  if (one.value_exponent != 0) scale_elements(one.problem.dtype, inputs_.v, one.value_exponent);
  if (one.endless > 0) {
    set_first_column(one, inputs_.v, one.shape.seqlen_k, one.shape.kv_heads(),
                     one.shape.seqlen_k - one.endless, std::numeric_limits<float>::infinity());
  }
  poison_ = autotune::poisoned(one.problem.dtype, one.shape.batch, one.shape.seqlen_q, one.shape.heads,
                               one.problem.value_dim(), strides.o);
  blocks_ = rows == 0 ? autotune::all_rows(one.shape)
                      : autotune::sample_rows(one.shape, (rows + 15) / 16, 16, one.seed);
  autotune::HostAttention attention = autotune::host_attention(one.problem, one.shape, inputs_);
  attention.scale = one.scale;
  reference_ = autotune::reference(attention, blocks_, reference_threads);
  plain_ = autotune::plain(attention, blocks_, reference_threads);
}

autotune::Check Attention::run(Engine& engine, const PlanOptions& options, std::string* schedule) const {
  const Problem& problem = case_.problem;
  const Shape& shape = case_.shape;
  const bool far = case_.layout == Layout::far;
  const Extent kv{shape.batch, shape.seqlen_k, shape.kv_heads(), 0};
  const auto with = [](Extent extent, int columns) {
    extent.columns = columns;
    return extent;
  };
  const Extent rows{shape.batch, shape.seqlen_q, shape.heads, problem.value_dim()};
  const OnDevice q(engine, problem.dtype, inputs_.q, with(rows, problem.head_dim), false);
  const OnDevice k(engine, problem.dtype, inputs_.k, with(kv, problem.head_dim), far);
  const OnDevice v(engine, problem.dtype, inputs_.v, with(kv, problem.value_dim()), far);
  const OnDevice o(engine, problem.dtype, poison_, rows, far, OnDevice::Role::output);
  HostTensor lse = autotune::poisoned(DType::fp32, shape.batch, shape.heads, shape.seqlen_q, 1);
  const OnDevice lse_there(engine, DType::fp32, lse, {shape.batch, shape.heads, shape.seqlen_q, 1}, false,
                           OnDevice::Role::output);

  const Plan plan = engine.plan(problem, shape, options);
  if (schedule != nullptr) *schedule = plan.origin().schedule;
  plan.forward({.q = q.data(),
                .k = k.data(),
                .v = v.data(),
                .o = o.data(),
                .lse = problem.lse ? static_cast<float*>(lse_there.data()) : nullptr,
                .q_strides = q.strides(),
                .k_strides = k.strides(),
                .v_strides = v.strides(),
                .o_strides = o.strides(),
                .scale = case_.scale});
  HostTensor result = poison_;
  o.download(result);
  lse_there.download(lse);

  autotune::HostAttention attention = autotune::host_attention(problem, shape, inputs_);
  attention.scale = case_.scale;
  autotune::Check check =
      autotune::acceptable(attention, blocks_, reference_, plain_,
                           {.o = result.bytes.data(),
                            .o_strides = result.strides,
                            .lse = problem.lse ? reinterpret_cast<const float*>(lse.bytes.data()) : nullptr});
  if (!far && !gaps_untouched(poison_, result, rows, static_cast<std::size_t>(size_of(problem.dtype)))) {
    check.ok = false;
    check.message += " memory between the rows of o was written";
  }
  return check;
}

}  // namespace flashjit::test
