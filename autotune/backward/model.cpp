// The backward pass's model: products at the family's rate, the waves of its grids, and the bytes of dQ's
// sum.
#include <algorithm>
#include <cmath>

#include "autotune/backward/backward.hpp"

namespace flashjit::autotune {
namespace {

// Multiply-adds counted twice, per clock and multiprocessor, as the main kernels reach them.
double flops_per_clock(Family family, const Target& target) {
  switch (family) {
    case Family::simt:
      return 100;
    case Family::mma:
      return target.capability == 80 || target.capability >= 90 ? 900 : 400;
    case Family::wgmma:
      return 2400;
  }
  return 1;
}

constexpr double kClockGhz = 1.6;
constexpr double kDramGbps = 2000;
constexpr double kLaunchMs = 0.004;

}  // namespace

double predict_backward(const Problem& problem, const Shape& shape, const Schedule& schedule,
                        const Target& target) {
  const bool own_pass = get(schedule, "dq") == static_cast<int>(DqWay::own_pass);
  const double sms = std::max(1, target.sm_count);
  // Five products in one pass; seven where dQ has a pass of its own, which forms S and dP again.
  const double work = flops(problem, shape) / sms * (own_pass ? 7.0 / 5 : 1.0);
  const double ctas =
      std::ceil(1.0 * shape.seqlen_k / get(schedule, "tile_n")) * shape.kv_heads() * shape.batch;
  if (ctas == 0 || shape.seqlen_q == 0) return kLaunchMs;
  const double waves = std::ceil(ctas / sms) / (ctas / sms);
  const double main_ms = work * waves / flops_per_clock(family_of(schedule), target) / (kClockGhz * 1e6);
  const double sum_bytes =
      own_pass ? 0 : 4.0 * 3 * shape.batch * shape.heads * shape.seqlen_q * problem.head_dim;
  return main_ms + sum_bytes / (kDramGbps * 1e6) + 3 * kLaunchMs;
}

}  // namespace flashjit::autotune
