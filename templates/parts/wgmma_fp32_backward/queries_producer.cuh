// The thread that has a CTA's query rows copied to shared memory, and tiles of keys.
#pragma once

#include "params/backward.h"
#include "parts/mma/backward_query_tile.cuh"
#include "parts/mma/visible_keys.cuh"
#include "parts/wgmma_fp32/ring_place.cuh"
#include "parts/wgmma_fp32_backward/key_parts.cuh"
#include "parts/wgmma_fp32_backward/queries_layout.cuh"
#include "parts/wgmma_fp32_backward/row_parts.cuh"
#include "ptx/bulk.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mbarrier_bytes.cuh"

__device__ __forceinline__ void produce(unsigned shared, const BackwardParams& params) {
  const QueryTile tile = query_tile_of_block(params);
  const VisibleKeys visible(params, tile.m * kTileM);
  if (visible.masked_end == 0) return;
  const unsigned char* const rows = RowParts::of(params, tile.batch * params.heads + tile.head, tile.m);
  const auto load = [](unsigned to, const unsigned char* from, int bytes, unsigned full) {
    mbarrier_arrive_expecting(full, bytes);
    bulk_load(to, from, bytes, full);
  };
  load(shared + kQ, rows + RowParts::kQ, TileQK::kBytes, shared + kQFull);
  load(shared + kDout, rows + RowParts::kDout, TileV::kBytes, shared + kDoutFull);

  // V comes first, since its place is free sooner: dQ is computed last, from K.
  const int pair = tile.batch * params.heads_kv + tile.head / params.group;
  RingPlace place;
  for (int n = 0; n < visible.masked_end; ++n, place.advance()) {
    const int barrier = 8 * place.stage, parity = place.parity ^ 1;
    const unsigned char* const keys = KeyParts::of(params, pair, n);
    mbarrier_wait(shared + kVEmpty + barrier, parity);
    load(shared + kV + place.stage * TileV::kBytes, keys + KeyParts::kV, TileV::kBytes,
         shared + kVFull + barrier);
    mbarrier_wait(shared + kKEmpty + barrier, parity);
    load(shared + kK + place.stage * TileQK::kBytes, keys + KeyParts::kK, TileQK::kBytes,
         shared + kKFull + barrier);
  }
}
