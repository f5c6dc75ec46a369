// What a multiprocessor's units do in a clock, on every arch, and how well their work overlaps: shared by the
// families' steps.
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "flashjit/target.hpp"
#include "generator/render.hpp"

namespace flashjit::autotune {

constexpr double kExponentials = 16;  // MUFU.EX2 per clock and multiprocessor, every arch so far
constexpr double kSharedBytes = 128;  // per clock and multiprocessor
constexpr double kL2Bytes = 48;       // per clock and multiprocessor, sustained with all of them reading
constexpr double kLoadCycles = 700;   // from a copy's issue to its data, out of L2 under load

// Columns, in whole 16-element steps of mma.
inline double padded(int dim) {
  const int whole = (dim + 15) / 16 * 16;
  return whole;
}

// CTAs of `registers` per thread that a multiprocessor holds.
inline int ctas_of(const Target& target, const Geometry& geometry, double registers) {
  const double shared = geometry.shared_bytes + target.shared_reserved;
  const double most = std::min(
      {static_cast<double>(target.ctas_per_sm), std::floor(1.0 * target.threads_per_sm / geometry.threads),
       std::floor(target.shared_per_sm / shared),
       std::floor(target.registers_per_sm / (geometry.threads * std::ceil(registers / 8) * 8))});
  return static_cast<int>(std::max(1.0, most));
}

// The most registers that __launch_bounds__ leaves a thread.
inline double register_limit(int min_ctas, double threads) {
  return std::min(255.0, min_ctas > 0 ? std::floor(65536.0 / (threads * min_ctas) / 8) * 8 : 255.0);
}

// What part of the other units' work is not hidden behind the busiest one's: few warps, each in order, hide
// little.
inline double exposed_share(double warps) {
  return 0.62 / std::sqrt(std::max(1.0, warps / 4));
}

// Cycles of units that work side by side: the busiest one's, and a share of the others'.
inline double combine(std::initializer_list<double> units, double share) {
  double sum = 0, largest = 0;
  for (const double cycles : units) {
    sum += cycles;
    largest = std::max(largest, cycles);
  }
  return largest + share * (sum - largest);
}

// How long a step waits for its copies: they were issued `ahead` steps before they are wanted.
inline double exposed_load(double ahead, double step, int ctas) {
  return std::max(0.0, kLoadCycles - ahead * step) / ctas;
}

}  // namespace flashjit::autotune
