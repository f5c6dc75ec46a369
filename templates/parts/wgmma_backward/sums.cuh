// dQ from the fp32 sums of its shares, in the kernel that adds them (dq_order.cuh). Warps that have nothing
// else to do turn sums into dQ, one unit of rows after another, as soon as all tiles of a head's keys have
// added theirs: one warp beside the consumers from the start, and consumers when there are no more tiles.
#pragma once
#include "params/backward.h"
#include "parts/divide.cuh"
/*%#splits%*/
#include "parts/wgmma_backward/key_sums.cuh"
/*%/splits%*/
#include "parts/wgmma_backward/sum_pieces.cuh"
#include "parts/wgmma_backward/tiles.cuh"
#include "ptx/add_release.cuh"
#include "ptx/load_acquire.cuh"

__device__ __forceinline__ int* units_taken(const BackwardParams& p) {
  return p.counters;
}
/*%^splits%*/
// Counts the tiles of a K/V head's keys that have added to dQ; heads are counted over the batch.
/*%/splits%*/
/*%#splits%*/
// Counts the tiles that have added to some heads' dQ (KeyTile::heads_met).
/*%/splits%*/
__device__ __forceinline__ int* tiles_added(int heads_met, const BackwardParams& p) {
  return p.counters + 1 + heads_met;
}

// Notes that a tile has added all its shares of dQ. Where there are no queries there are no counters.
__device__ __forceinline__ void note_tile_added(int heads_met, const BackwardParams& p) {
  if (p.seqlen_q > 0) add_release(tiles_added(heads_met, p), 1);
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

// Waits until all tiles have added to these heads' dQ.
__device__ __forceinline__ void wait_for_tiles(int heads_met, const BackwardParams& p) {
  /*%^splits%*/
  /*%^divided%*/
  const int adders = p.tiles * kCtasPerTile;
  /*%/divided%*/
  /*%#divided%*/
  // Divided tiles add in two parts.
  const int tiles = anew(p.tiles);
  const int adders = tiles + min(max((heads_met + 1) * tiles - anew(p.undivided_tiles), 0), tiles);
  /*%/divided%*/
  /*%/splits%*/
  /*%#splits%*/
  const int adders = p.tiles * p.row_splits;
  /*%/splits%*/
  while (load_acquire(tiles_added(heads_met, p)) < adders) __nanosleep(256);
}

// Takes units, in the order in which heads come, until there are no more.
/*%#splits%*/
// After those of the heads that share a K/V head come its keys.
/*%/splits%*/
template <int kAtOnce>
__device__ __forceinline__ void convert_sums(const BackwardParams& p) {
  if (p.seqlen_q == 0) return;
#pragma unroll 1
  for (;;) {
    int unit = 0;
    if (lane() == 0) unit = atomicAdd(units_taken(p), 1);
    unit = __shfl_sync(0xffffffffu, unit, 0);
    const int units_of_head = (anew(p.seqlen_q) + kUnitRows - 1) / kUnitRows;
    /*%^splits%*/
    const int head = unit / units_of_head;  // over the batch
    if (head >= anew(p.batch) * p.heads) return;
    const int row = (unit - head * units_of_head) * kUnitRows;
    /*%/splits%*/
    /*%#splits%*/
    const int heads_of_keys = anew(p.group) * p.head_splits, units_of_rows = heads_of_keys * units_of_head;
    const int units_of_group = units_of_rows + key_units(p);
    const int head_kv = unit / units_of_group;  // over the batch
    if (head_kv >= anew(p.batch) * p.heads_kv) return;
    unit -= head_kv * units_of_group;
    if (unit >= units_of_rows) {
      for (int part = 0; part < p.head_splits; ++part) wait_for_tiles(head_kv * p.head_splits + part, p);
      convert_keys<kAtOnce / 2, true>(head_kv, (unit - units_of_rows) * kWarpKeys, p);
      continue;
    }
    const int head_of_keys = unit / units_of_head, head = head_kv * heads_of_keys + head_of_keys;
    const int row = (unit - head_of_keys * units_of_head) * kUnitRows;
    /*%/splits%*/
    /*%#causal%*/
    // No tile adds to queries that see no key; their dQ is zero already.
    if ((row / kTileM + 1) * kTileM <= p.seqlen_q - anew(p.seqlen_k)) continue;
    /*%/causal%*/
    wait_for_tiles(divide(head, p.by_group), p);
    convert_unit<kAtOnce>(head, row, p);
  }
}
