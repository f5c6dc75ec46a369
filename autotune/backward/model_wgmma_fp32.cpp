// Family wgmma's backward pass in fp32: what a step's products take if tensor cores do nothing else, and what
// was measured on top of it on an H200 (docs/performance/wgmma-fp32.md, "Gradients").
#include <algorithm>
#include <cmath>

#include "autotune/backward/model_fp32.hpp"
#include "generator/families/wgmma_backward_layout.hpp"

namespace flashjit::autotune {

double wgmma_fp32_ms(const Problem& p, const Shape& shape, const WgmmaBackwardSchedule& s,
                     const Target& target) {
  constexpr double kFitGhz = 1.98;
  constexpr double kStep = 800, kOfTensor = 1.65;  // clocks; of what tensor cores take
  constexpr double kLeast = 7050;                  // clocks of a step with dQ: roles wait for each other
  constexpr double kOfColumn = 20;                 // of a CTA's beginning, for K, V and the first rows
  const bool adds_dq = wgmma_backward::adds_dq(s);
  const double d = p.head_dim, dv = p.value_dim();
  // Six products of parts; 32 clocks for 64 x 64 x 16.
  const double scores = 6 * 32 * (std::ceil(d / 16) + std::ceil(dv / 16));
  const double gradients = 6.0 * s.tile_n / 16 * (dv + (adds_dq ? 2 : 1) * d) / 2;
  const double step = std::max(adds_dq ? kLeast : 0, kStep + kOfTensor * (scores + gradients));
  const double start = kOfColumn * (d + dv);
  const double ctas = std::ceil(1.0 * shape.seqlen_k / s.tile_n) * shape.batch * shape.kv_heads();
  const double steps = tiles_of_head(p, shape, s.tile_m, s.tile_n) * shape.batch * shape.heads;
  const double longest = std::ceil(1.0 * shape.seqlen_q / s.tile_m) * shape.heads / shape.kv_heads();
  const double clocks = clocks_of_waves(steps / ctas * step + start, longest * step + start,
                                        ctas / std::max(1, target.sm_count), p.causal);
  return clocks / (kFitGhz * 1e6) + (adds_dq ? 0 : mma_fp32_dq_ms(p, shape, target));
}

}  // namespace flashjit::autotune
