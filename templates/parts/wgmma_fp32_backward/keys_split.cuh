// The CTA's keys, on their way through registers to shared memory.
#pragma once

#include "params/backward.h"
#include "parts/mma/backward_key_tile.cuh"
#include "parts/mma/head_of_fp32.cuh"
#include "parts/wgmma_fp32/rows.cuh"
#include "parts/wgmma_fp32/split_copy.cuh"
#include "parts/wgmma_fp32_backward/layout.cuh"
#include "ptx/fence_async_shared.cuh"
#include "ptx/finite.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/thread_index.cuh"

// K and V, by both warpgroups that multiply them.
__device__ __forceinline__ void split_keys(unsigned shared, const BackwardParams& params) {
  const KeyTile tile = key_tile_of_block(params);
  const float* const k = head_of(params.k, tile.batch * params.k_batch, tile.head * params.k_head);
  const float* const v = head_of(params.v, tile.batch * params.v_batch, tile.head * params.v_head);
  const int thread = thread_index() % 256, first_key = tile.n * kTileN;
  const auto as_it_is = [](float x) { return x; };
  const auto wait_for_nothing = [] {};
  split_copy<TileQK, TileQK::kRows, kHeadDim, 256>({k, params.k_row, first_key, params.seqlen_k}, shared + kK,
                                                   thread, finite, wait_for_nothing);
  split_copy<TileV, TileV::kRows, kHeadDimV, 256>({v, params.v_row, first_key, params.seqlen_k}, shared + kV,
                                                  thread, as_it_is, wait_for_nothing);
  fence_async_shared();
  named_barrier_sync(kKeysAreThere, 256);
}
