// Family wgmma's backward pass in fp32: what the products of a step take if tensor cores do nothing else, and
// what was measured on top of it on an H200 (docs/performance/wgmma-fp32.md, "Gradients").
#include <algorithm>
#include <cmath>

#include "autotune/backward/model_fp32.hpp"
#include "autotune/model/memory.hpp"
#include "generator/families/wgmma_backward_fp32.hpp"
#include "generator/families/wgmma_backward_layout.hpp"

namespace flashjit::autotune {

double wgmma_fp32_ms(const Problem& p, const Shape& shape, const WgmmaBackwardSchedule& s,
                     const Target& target) {
  constexpr double kFitGhz = 1.98;
  constexpr double kOfKeys = 1680, kOfQueries = 470;  // clocks of a step, besides products
  constexpr double kOfLine = 2.35;  // of 128 bytes that are copied, where a step has to wait for them
  constexpr double kStart = 5500, kOfColumn = 36;  // of a CTA's beginning
  const bool adds_dq = wgmma_backward::adds_dq(s);
  const double d = p.head_dim, dv = p.value_dim(), tile = s.tile_n;
  // Six products of parts; 32 clocks for 64 x 64 x 16.
  const double scores = 6 * 32 * (std::ceil(d / 16) + std::ceil(dv / 16));
  const double of_column = 6 * tile / 16 / 2;  // of a gradient
  const double tile_bytes = key_parts_bytes_wgmma_backward_fp32(p);
  const double waiting = s.stages == 1 ? kOfLine * tile_bytes / 128 : 0;
  const double start = kStart + kOfColumn * (d + dv);
  const double sms = std::max(1, target.sm_count);
  const double steps = tiles_of_head(p, shape, s.tile_m, s.tile_n) * shape.batch * shape.heads;

  const double step = kOfKeys + scores + of_column * (dv + (adds_dq ? 2 : 1) * d) + waiting;
  const double key_tiles = std::ceil(shape.seqlen_k / tile) * shape.batch * shape.kv_heads();
  const double rows = p.causal ? std::min(shape.seqlen_q, shape.seqlen_k) : shape.seqlen_q;
  const double longest = std::ceil(rows / s.tile_m) * shape.heads / shape.kv_heads();
  double clocks =
      clocks_of_waves(steps / key_tiles * step + start, longest * step + start, key_tiles / sms, p.causal);

  // Q, dO and O are read, and the parts of Q and dO written.
  const double row_tiles = std::ceil(1.0 * shape.seqlen_q / s.tile_m) * shape.batch * shape.heads;
  double bytes = row_tiles * (tile_bytes + 4.0 * s.tile_m * (d + 2 * dv));
  if (!adds_dq) {  // the kernel that owns query rows
    const double of_queries = kOfQueries + scores + of_column * d + waiting;
    clocks +=
        clocks_of_waves(steps / row_tiles * of_queries + start,
                        std::ceil(shape.seqlen_k / tile) * of_queries + start, row_tiles / sms, p.causal);
    bytes += key_tiles * tile_bytes;
  }
  return clocks / (kFitGhz * 1e6) + bytes / memory_rate(target);
}

}  // namespace flashjit::autotune
