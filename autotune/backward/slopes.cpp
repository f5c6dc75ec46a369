// Central differences of the float64 forward reference.
#include "autotune/backward/slopes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "autotune/numeric.hpp"

namespace flashjit::autotune {
namespace {

// Steps this small move a logit by less than 1 even where the other factor is 60 (InputKind::late_giant).
// Points are moved by what fp32 makes of the step, which is known exactly; the loss has 52 bits to show it.
constexpr float kStep = 0x1p-8F;

// The error that the extrapolation leaves in slopes of about 1: measured against the float64 gradients, with
// a margin.
constexpr double kError = 1e-5;

}  // namespace

Slopes::Slopes(const HostBackward& from) : attention_(from.attention) {
  const HostAttention& a = from.attention;
  const DType dtype = a.problem.dtype;
  const Shape& s = a.shape;
  const int d = a.problem.head_dim;
  const int dv = a.problem.value_dim();
  q_ = copy(dtype, a.q, a.q_strides, s.batch, s.seqlen_q, s.heads, d);
  k_ = copy(dtype, a.k, a.k_strides, s.batch, s.seqlen_k, s.kv_heads(), d);
  v_ = copy(dtype, a.v, a.v_strides, s.batch, s.seqlen_k, s.kv_heads(), dv);
  dout_ = copy(dtype, from.dout, from.dout_strides, s.batch, s.seqlen_q, s.heads, dv);
  attention_.problem.dtype = DType::fp32;
  attention_.q = q_.data.data();
  attention_.k = k_.data.data();
  attention_.v = v_.data.data();
  attention_.q_strides = attention_.k_strides = attention_.v_strides = {};
}

Slopes::Copy Slopes::copy(DType dtype, const void* data, const Strides& given, int batch, int rows, int heads,
                          int dim) {
  const Strides from = strides_or_packed(given, rows, heads, dim);
  Copy copy{.data = {}, .strides = strides_or_packed({}, rows, heads, dim)};
  copy.data.reserve(static_cast<std::size_t>(batch) * rows * heads * dim);
  for (int b = 0; b < batch; ++b) {
    for (int i = 0; i < rows; ++i) {
      for (int h = 0; h < heads; ++h) {
        for (int x = 0; x < dim; ++x)
          copy.data.push_back(load_element(dtype, data, b * from.batch + i * from.row + h * from.head + x));
      }
    }
  }
  return copy;
}

double Slopes::of_q(int batch, int row, int head, int column) {
  return slope(q_, batch * q_.strides.batch + row * q_.strides.row + head * q_.strides.head + column,
               {{batch, head, row, 1}});
}
double Slopes::of_k(int batch, int row, int head, int column) {
  return slope(k_, batch * k_.strides.batch + row * k_.strides.row + head * k_.strides.head + column,
               rows_that_see(batch, head));
}
double Slopes::of_v(int batch, int row, int head, int column) {
  return slope(v_, batch * v_.strides.batch + row * v_.strides.row + head * v_.strides.head + column,
               rows_that_see(batch, head));
}

std::vector<RowBlock> Slopes::rows_that_see(int batch, int kv_head) const {
  const Shape& s = attention_.shape;
  const int group = s.heads / s.kv_heads();
  std::vector<RowBlock> rows;
  for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    for (int first = 0; first < s.seqlen_q; first += 32)
      rows.push_back({batch, h, first, std::min(32, s.seqlen_q - first)});
  }
  return rows;
}

double Slopes::slope(Copy& tensor, std::int64_t element, const std::vector<RowBlock>& rows) {
  float& x = tensor.data[static_cast<std::size_t>(element)];
  const float before = x;
  const auto central = [&](float step) {
    const float above = before + step;
    const float below = before - step;
    x = above;
    const double more = loss(rows);
    x = below;
    const double less = loss(rows);
    x = before;
    return (more - less) / (static_cast<double>(above) - below);
  };
  return (4 * central(kStep / 2) - central(kStep)) / 3;
}

double Slopes::loss(const std::vector<RowBlock>& rows) const {
  const HostResult result = reference(attention_, rows);
  const int dv = attention_.problem.value_dim();
  double sum = 0;
  std::size_t at = 0;
  for (const RowBlock& block : rows) {
    for (int r = 0; r < block.count; ++r) {
      const std::int64_t base = block.batch * dout_.strides.batch + block.head * dout_.strides.head +
                                (block.first + r) * dout_.strides.row;
      for (int x = 0; x < dv; ++x, ++at)
        sum += result.out[at] * dout_.data[static_cast<std::size_t>(base + x)];
    }
  }
  return sum;
}

Check compare_with_slopes(const HostBackward& from, const HostGradientOutput& output,
                          const GradientCheck& rule, int per_tensor, std::uint64_t seed) {
  const Shape& s = from.attention.shape;
  const Problem& problem = from.attention.problem;
  Slopes slopes(from);
  std::mt19937_64 random(seed);
  const auto below = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
  Check all;
  double excess = -1;
  const auto look = [&](const char* name, auto slope_of, const void* got, const Strides& given, int rows,
                        int heads, int dim, double allowed) {
    if (s.batch == 0 || rows == 0) return;
    const Strides strides = strides_or_packed(given, rows, heads, dim);
    for (int n = 0; n < per_tensor; ++n) {
      const int b = below(s.batch), row = below(rows), head = below(heads), column = below(dim);
      const double want = slope_of(b, row, head, column);
      const double is = load_element(problem.dtype, got,
                                     b * strides.batch + row * strides.row + head * strides.head + column);
      const double limit = allowed + kError * (1 + std::abs(want));
      const double error = std::isnan(is) ? HUGE_VAL : std::abs(is - want);
      ++all.rows;
      if (!(error / limit > excess)) continue;
      excess = error / limit;
      all.max_error = error;
      all.allowed = limit;
      if (error <= limit) continue;
      all.message = fmt::format(
          "{} is {:.5g} where finite differences give {:.5g}, at batch {} head {} row {} column {}", name, is,
          want, b, head, row, column);
    }
  };
  const int d = problem.head_dim;
  const int dv = problem.value_dim();
  look(
      "dq", [&](auto... at) { return slopes.of_q(at...); }, output.dq, output.dq_strides, s.seqlen_q, s.heads,
      d, rule.dq.allowed);
  look(
      "dk", [&](auto... at) { return slopes.of_k(at...); }, output.dk, output.dk_strides, s.seqlen_k,
      s.kv_heads(), d, rule.dk.allowed);
  look(
      "dv", [&](auto... at) { return slopes.of_v(at...); }, output.dv, output.dv_strides, s.seqlen_k,
      s.kv_heads(), dv, rule.dv.allowed);
  all.ok = all.message.empty();
  return all;
}

}  // namespace flashjit::autotune
