// dQ from the fp32 sums of its shares, in the kernel that adds them (dq_order.cuh). Warps that have nothing
// else to do turn sums into dQ, one unit of rows after another, as soon as all tiles of a head's keys have
// added theirs: one warp beside the consumers from the start, and the consumers when there are no more tiles.
#pragma once
#include "params/backward.h"
#include "parts/divide.cuh"
#include "parts/wgmma_backward/sum_pieces.cuh"
#include "parts/wgmma_backward/tiles.cuh"
#include "ptx/add_release.cuh"
#include "ptx/load_acquire.cuh"

__device__ __forceinline__ int* units_taken(const BackwardParams& p) {
  return p.counters;
}
// Counts the tiles of a K/V head's keys; heads are counted over the batch.
__device__ __forceinline__ int* tiles_added(int head_kv, const BackwardParams& p) {
  return p.counters + 1 + head_kv;
}

// Notes that a tile has added all its shares of dQ. Where there are no queries there are no counters.
__device__ __forceinline__ void note_tile_added(int head_kv, const BackwardParams& p) {
  if (p.seqlen_q > 0) add_release(tiles_added(head_kv, p), 1);
}

// Converts a unit to dQ, from `row` of a head (counted over the batch) on. A lane has kAtOnce loads in
// flight, as many as it has registers for.
template <int kAtOnce>
__device__ __forceinline__ void convert_unit(int head, int row, const BackwardParams& p) {
  DqRows to(head, row, p);
  const float* sums = sums_of(head, row, p) + 4 * lane();
#pragma unroll 1
  for (; row < to.end; row += kPieceRows) {
#pragma unroll
    for (int first = 0; first < kPiecesAcross; first += kAtOnce) {
      const int behind = first + kAtOnce < kPiecesAcross ? first + kAtOnce : kPiecesAcross;
      float4 sum[kAtOnce];
#pragma unroll
      for (int i = first; i < behind; ++i) {
        sum[i - first] = __ldcg(reinterpret_cast<const float4*>(sums + piece_offset(i)));
      }
#pragma unroll
      for (int i = first; i < behind; ++i) to.write(i, sum[i - first]);
    }
    sums += kRowsApart;
    to.advance();
  }
}

// Takes units, in the order in which heads come, until there are no more.
template <int kAtOnce>
__device__ __forceinline__ void convert_sums(const BackwardParams& p) {
  if (p.seqlen_q == 0) return;
#pragma unroll 1
  for (;;) {
    int unit = 0;
    if (lane() == 0) unit = atomicAdd(units_taken(p), 1);
    unit = __shfl_sync(0xffffffffu, unit, 0);
    const int units_of_head = (anew(p.seqlen_q) + kUnitRows - 1) / kUnitRows;
    const int head = unit / units_of_head;  // over the batch
    if (head >= anew(p.batch) * p.heads) return;
    const int row = (unit - head * units_of_head) * kUnitRows;
    /*%#causal%*/
    // No tile adds to queries that see no key; their dQ is zero already.
    if ((row / kTileM + 1) * kTileM <= p.seqlen_q - anew(p.seqlen_k)) continue;
    /*%/causal%*/
    while (load_acquire(tiles_added(divide(head, p.by_group), p)) < p.tiles * kCtasPerTile) __nanosleep(256);
    convert_unit<kAtOnce>(head, row, p);
  }
}
