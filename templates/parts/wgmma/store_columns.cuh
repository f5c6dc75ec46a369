// Stores O to device memory from the registers of the threads that have added it up.
#pragma once
#include "params/forward.h"
#include "parts/wgmma/layout.cuh"
#include "parts/wgmma/rows.cuh"
#include "parts/wgmma/softmax.cuh"
#include "parts/wgmma/tiles.cuh"
#include "ptx/cluster.cuh"
#include "ptx/convert.cuh"
#include "ptx/reciprocal.cuh"

// The first column of one of this CTA's groups; it is past the head dim's end where columns do not divide
// among CTAs.
__device__ __forceinline__ int first_column(int group) {
  return 8 * (cluster_rank() * kGroupsOfCta + group);
}

// Normalises O and stores it to device memory.
__device__ __forceinline__ void store_columns(const float (&o)[4 * kGroupsOfCta], const SoftmaxState& rows,
                                              const Tile& tile, const RowsOfThread& mine,
                                              const ForwardParams& p) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int packed_row = mine.row + 8 * row;
    const int place = place_of(packed_row, p);
    if (place >= p.heads_of_pack || packed_row >= row_count(p)) continue;
    const int head = tile.pack * p.heads_of_pack + place;
    unsigned short* to = static_cast<unsigned short*>(p.o) + tile.batch * p.o_batch + head * p.o_head +
                         (packed_row >> p.packed) * p.o_row;
    const float inverse = rows.sum[row] == 0 ? 0.0f : reciprocal_fast(rows.sum[row]);
#pragma unroll
    for (int group = 0; group < kGroupsOfCta; ++group) {
      if (first_column(group) >= kHeadDimV) break;
      const unsigned pair = pack(o[4 * group + 2 * row] * inverse, o[4 * group + 2 * row + 1] * inverse);
      *reinterpret_cast<unsigned*>(to + first_column(group) + 2 * (lane() % 4)) = pair;
    }
  }
}
