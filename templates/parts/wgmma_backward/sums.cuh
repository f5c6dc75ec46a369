// dQ from the fp32 sums of its shares, in the kernel that adds them. Warps that have nothing else to do take
// 64 rows after another, as soon as all tiles of a head's keys have added theirs: one beside the consumers
// from the start, and the consumers when there are no more tiles.
#pragma once
#include "params/backward.h"
#include "parts/wgmma_backward/layout.cuh"
#include "ptx/acquire_release.cuh"
#include "ptx/convert.cuh"

constexpr int kUnitRows = 64;
// A counter for each 64 rows is one more than needed: one, and one for each K/V head.
static_assert(kBackwardRowPadding / kBackwardCounterRows >= 2);

__device__ __forceinline__ int* units_taken(const BackwardParams& p) {
  return p.counters;
}
// Of a K/V head's keys; heads are counted over the batch.
__device__ __forceinline__ int* tiles_added(int head_kv, const BackwardParams& p) {
  return p.counters + 1 + head_kv;
}

// All that a tile adds to dQ has been added. Where there are no queries there are no counters.
__device__ __forceinline__ void note_tile_added(int head_kv, const BackwardParams& p) {
  if (p.seqlen_q > 0) add_release(tiles_added(head_kv, p), 1);
}

// Takes units, in the order in which heads come, until there are no more. A lane has kAtOnce loads in flight, as
// many as it has registers for.
// The sums lie as wgmma's accumulators do (ptx/wgmma.cuh), in cells of 64 rows and up to 64 columns: for every
// eight columns, each of 128 threads has four. A head's cells follow each other row of cells by row of cells.
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
    while (load_acquire(tiles_added(head / anew(p.group), p)) < p.tiles) __nanosleep(256);

    int row = (unit - head * units_of_head) * kUnitRows;
    const float* sums =
        p.dq_sum + (static_cast<long long>(head) * anew(p.padded_q) + row) * kHeadDim + 4 * lane();
    const int end = min(row + kUnitRows, p.seqlen_q);
    const int thread = anew(lane());
    row += thread / 4;
    const int batch = head / anew(p.heads);
    auto* low = static_cast<unsigned short*>(p.dq) + batch * p.dq_batch +
                (head - batch * anew(p.heads)) * p.dq_head + row * p.dq_row + 2 * (thread % 4);
    // 16 rows at a time: this lane's pairs are in two of them, 8 apart.
#pragma unroll 1
    for (; row < end; row += 16) {
      unsigned short* const high = low + 8 * p.dq_row;
#pragma unroll
      for (int first = 0; first < kHeadDim / 8; first += kAtOnce) {
        const int behind = first + kAtOnce < kHeadDim / 8 ? first + kAtOnce : kHeadDim / 8;
        float4 sum[kAtOnce];
#pragma unroll
        for (int j = first; j < behind; ++j) {
          sum[j - first] = __ldcg(reinterpret_cast<const float4*>(sums + 512 * j));
        }
#pragma unroll
        for (int j = first; j < behind; ++j) {
          const float4 four = sum[j - first];
          const unsigned upper = pack(four.x * p.scale, four.y * p.scale);
          const unsigned lower = pack(four.z * p.scale, four.w * p.scale);
          *reinterpret_cast<unsigned*>(low + 8 * j) = upper;
          if (row + 8 < end) *reinterpret_cast<unsigned*>(high + 8 * j) = lower;
        }
      }
      sums += 128;
      low = high + 8 * p.dq_row;
    }
  }
}
