// The thread that has tiles of query rows copied to shared memory.
#pragma once

#include "params/backward.h"
#include "parts/mma/backward_key_tile.cuh"
#include "parts/wgmma_fp32/ring_place.cuh"
#include "parts/wgmma_fp32_backward/layout.cuh"
#include "parts/wgmma_fp32_backward/row_parts.cuh"
#include "parts/wgmma_fp32_backward/steps.cuh"
#include "ptx/bulk.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mbarrier_bytes.cuh"

// dO comes first, since its place is free sooner: dV is computed before dK.
__device__ __forceinline__ void produce(unsigned shared, const BackwardParams& params) {
  Steps step(params, key_tile_of_block(params));
  for (RingPlace place; step.left > 0; place.advance(), step.advance()) {
    const int barrier = 8 * place.stage, parity = place.parity ^ 1;
    const unsigned dout_full = shared + kDoutFull + barrier, q_full = shared + kQFull + barrier;
    const unsigned char* const rows = RowParts::of(params, step.pair, step.m);

    mbarrier_wait(shared + kDoutEmpty + barrier, parity);
    mbarrier_arrive_expecting(dout_full, TileV::kBytes);
    bulk_load(shared + kDout + place.stage * TileV::kBytes, rows + RowParts::kDout, TileV::kBytes, dout_full);

    mbarrier_wait(shared + kQEmpty + barrier, parity);
    mbarrier_arrive_expecting(q_full, TileQK::kBytes + kRowsBytes);
    bulk_load(shared + kQ + place.stage * TileQK::kBytes, rows + RowParts::kQ, TileQK::kBytes, q_full);
    bulk_load(shared + kRows + place.stage * kRowsBytes, rows + RowParts::kLse, kRowsBytes, q_full);
  }
}
