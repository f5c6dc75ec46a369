#include "generator/families/simt_backward_layout.hpp"

#include <limits>

namespace flashjit::simt_backward {
namespace {

// Lanes of a warp across the keys of a tile of scores, 8 or 16; the others go down its rows. A thread's block
// of scores that is nearer to square loads less.
int lanes_of(const SimtBackwardSchedule& s) {
  const int threads = 32 * s.warps, rows = s.tile_m * 8 / threads, keys = s.tile_n / 8;
  return 2 * rows < keys && s.tile_n % 16 == 0 ? 16 : 8;
}

// The way that needs the fewest shared loads per multiply-add.
Sharing sharing_of(int tile, int dim, int threads) {
  Sharing best;
  double cheapest = std::numeric_limits<double>::infinity();
  for (const int sharers : {4, 8, 16, 32}) {
    const int own = tile * sharers / threads;
    if (dim % sharers != 0 || tile * sharers % threads != 0 || (own != 1 && own != 2 && own != 4 && own != 8))
      continue;
    const Sharing sharing{sharers, own, dim / sharers};
    const double cost = 1.0 * (sharing.loads_of_weights() + sharing.loads_of_columns()) / sharing.registers();
    if (cost < cheapest) cheapest = cost, best = sharing;
  }
  return best;
}

}  // namespace

Layout layout_of(const Problem& problem, const SimtBackwardSchedule& s) {
  Layout layout{};
  layout.threads = 32 * s.warps;
  layout.lanes = lanes_of(s);
  layout.rows = s.tile_m * layout.lanes / layout.threads;
  layout.keys = s.tile_n / layout.lanes;
  layout.of_q = sharing_of(s.tile_m, problem.head_dim, layout.threads);
  layout.of_k = sharing_of(s.tile_n, problem.head_dim, layout.threads);
  layout.of_v = sharing_of(s.tile_n, problem.value_dim(), layout.threads);
  // 16 bytes of padding put neighbouring rows into different banks, head dims being multiples of 8. The rows
  // of P that a warp stores at once are as many banks apart as it has lanes across them.
  layout.stride_qk = problem.head_dim + 4;
  layout.stride_v = problem.value_dim() + 4;
  layout.stride_p = s.tile_n + layout.lanes;
  layout.v_at = layout.k_at + s.tile_n * layout.stride_qk;
  layout.q_at = layout.v_at + s.tile_n * layout.stride_v;
  layout.dout_at = layout.q_at + s.tile_m * layout.stride_qk;
  layout.ds_at = layout.dout_at + s.tile_m * layout.stride_v;
  layout.p_at = layout.ds_at + s.tile_m * layout.stride_p;
  layout.floats_queries = layout.p_at;  // the kernel that owns queries has no use for P
  layout.floats_keys = layout.p_at + s.tile_m * layout.stride_p;
  return layout;
}

bool careful(const SimtBackwardSchedule& s) {
  return s.tile_m <= 16;
}

}  // namespace flashjit::simt_backward
