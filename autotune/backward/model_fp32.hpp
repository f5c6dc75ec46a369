// What predict_backward knows of fp32, family by family.
#pragma once

#include <algorithm>
#include <cmath>

#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"
#include "generator/schedule.hpp"

namespace flashjit::autotune {

// Milliseconds of the kernels that multiply: one, or two where dQ has a pass of its own.
double simt_ms(const Problem& problem, const Shape& shape, const SimtBackwardSchedule& schedule,
               const Target& target);
double mma_fp32_ms(const Problem& problem, const Shape& shape, const MmaBackwardSchedule& schedule,
                   const Target& target);
double wgmma_fp32_ms(const Problem& problem, const Shape& shape, const WgmmaBackwardSchedule& schedule,
                     const Target& target);

// Tiles of queries and keys with a pair that sees each other, in one head. Under a mask the keys before the
// diagonal face whole tiles of queries, as they do without one. Tiles on the diagonal are half in vain, half
// a tile of queries and half a tile of keys at a time.
inline double tiles_of_head(const Problem& problem, const Shape& shape, int tile_m, int tile_n) {
  const double q = shape.seqlen_q, k = shape.seqlen_k, m = tile_m, n = tile_n;
  if (!problem.causal) return std::ceil(q / m) * std::ceil(k / n);
  const double diagonal = std::min(q, k);  // rows, and as many keys
  const double before = std::ceil(q / m) * std::max(0.0, k - q) / n;
  return before + diagonal * diagonal / 2 / (m * n) + (diagonal / m + diagonal / n) / 2;
}

// Clocks of a kernel whose CTAs are `of_sm` for each multiprocessor, and take `mean` of its time: waves of
// them, whose last one is half full under a mask. The CTA that has most to do takes `longest` by itself.
inline double clocks_of_waves(double mean, double longest, double of_sm, bool causal) {
  return std::max(mean * (causal ? of_sm + 0.5 : std::ceil(of_sm)), longest);
}

}  // namespace flashjit::autotune
