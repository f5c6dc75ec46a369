// What the references of both passes are made of: scale, mask, dot products, and the comparison.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "autotune/numeric.hpp"
#include "autotune/reference.hpp"

namespace flashjit::autotune {

inline float scale_of(const HostAttention& a) {
  return a.scale.value_or(1.0f / std::sqrt(static_cast<float>(a.problem.head_dim)));
}

// How many keys, from the first on, a query row sees: a causal mask is aligned bottom-right.
inline std::int64_t keys_seen(const HostAttention& a, int row) {
  const std::int64_t keys = a.shape.seqlen_k;
  if (!a.problem.causal) return keys;
  return std::clamp<std::int64_t>(row + keys - a.shape.seqlen_q + 1, 0, keys);
}

// float64 has eight partial sums, so that the compiler may use a vector unit. fp32 has one sum, term after
// term: that is what "plainly" means, and eight sums would have a third of its error.
template <class T>
T dot(const T* a, const T* b, int count) {
  if constexpr (std::is_same_v<T, float>) {
    T sum = 0;
    for (int x = 0; x < count; ++x) sum += a[x] * b[x];
    return sum;
  }
  T partial[8] = {};
  for (int x = 0; x < count; x += 8) {  // head dims are multiples of 8
    for (int lane = 0; lane < 8; ++lane) partial[lane] += a[x + lane] * b[x + lane];
  }
  return ((partial[0] + partial[4]) + (partial[2] + partial[6])) +
         ((partial[1] + partial[5]) + (partial[3] + partial[7]));
}

// |got - want|, which is 0 for equal infinities and for two NaNs, and infinite where only one is a NaN.
inline double distance(double got, double want) {
  if (got == want || (std::isnan(got) && std::isnan(want))) return 0;
  const double difference = std::abs(got - want);
  if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
  return difference;
}

// The rule of acceptable(), value by value.
class Comparison {
 public:
  explicit Comparison(DType dtype) : dtype_(dtype) {}

  // Whether this is the largest error so far.
  bool add(double got, double want, double simple) {
    // Where the plain computation overflows, it says nothing about what error is to be expected.
    const double simple_error = distance(simple, want);
    if (std::isfinite(simple_error)) plain_error_ = std::max(plain_error_, simple_error);
    if (std::isfinite(want)) atol_ = std::max(atol_, 2 * jitter(want));
    const double error = distance(got, want);
    if (!(error > max_error_)) return false;
    max_error_ = error;
    return true;
  }

  // Sets max_error, plain_error and allowed.
  void conclude(Check& check) const {
    check.max_error = max_error_;
    check.plain_error = plain_error_;
    check.allowed = 2 * plain_error_ + atol_;
  }

 private:
  // How far adding and subtracting 0.3 in the dtype moves a value: the size of one rounding near the values
  // at hand.
  [[nodiscard]] double jitter(double value) const {
    const float stored = round_to(dtype_, static_cast<float>(value));
    const float moved = round_to(dtype_, round_to(dtype_, stored + 0.3f) - 0.3f);
    return std::abs(static_cast<double>(moved) - stored);
  }

  DType dtype_;
  double max_error_ = 0, plain_error_ = 0, atol_ = 0;
};

}  // namespace flashjit::autotune
