// The CTA's keys, on their way through registers to shared memory.
#pragma once

#include "params/backward.h"
#include "parts/mma/backward_key_tile.cuh"
#include "parts/mma/head_of_fp32.cuh"
#include "parts/wgmma_fp32/rows.cuh"
#include "parts/wgmma_fp32/split_copy.cuh"
/*%^dq_sum%*/
#include "parts/wgmma_fp32_backward/key_parts.cuh"
/*%/dq_sum%*/
#include "parts/wgmma_fp32_backward/layout.cuh"
/*%^dq_sum%*/
#include "ptx/bulk_store.cuh"
/*%/dq_sum%*/
#include "ptx/fence_async_shared.cuh"
#include "ptx/finite.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/thread_index.cuh"

// K and V, by both warpgroups that multiply them, up to the end of the last panel.
/*%^dq_sum%*/
// One thread begins to copy them to the workspace.
/*%/dq_sum%*/
__device__ __forceinline__ void split_keys(unsigned shared, const BackwardParams& params) {
  const KeyTile tile = key_tile_of_block(params);
  const float* const k = head_of(params.k, tile.batch * params.k_batch, tile.head * params.k_head);
  const float* const v = head_of(params.v, tile.batch * params.v_batch, tile.head * params.v_head);
  const int thread = thread_index() % 256, first_key = tile.n * kTileN;
  const auto as_it_is = [](float x) { return x; };
  const auto wait_for_nothing = [] {};
  constexpr int kPadded = (kHeadDim + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
  constexpr int kPaddedV = (kHeadDimV + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
  split_copy<TileQK, 64, kHeadDim, 256, kPadded>({k, params.k_row, first_key, params.seqlen_k}, shared + kK,
                                                 thread, finite, wait_for_nothing);
  split_copy<TileV, 64, kHeadDimV, 256, kPaddedV>({v, params.v_row, first_key, params.seqlen_k}, shared + kV,
                                                  thread, as_it_is, wait_for_nothing);
  fence_async_shared();
  named_barrier_sync(kKeysAreThere, 256);
  /*%^dq_sum%*/
  if (thread == 0) {
    unsigned char* const to = KeyParts::of(params, tile.batch * params.heads_kv + tile.head, tile.n);
    bulk_store(to, shared + kK, KeyParts::kBytes);
    bulk_commit();
  }
  /*%/dq_sum%*/
}
/*%^dq_sum%*/

// The thread that began to copy them waits until shared memory has been read.
__device__ __forceinline__ void wait_for_copied_keys() {
  if (thread_index() % 256 == 0) bulk_wait_read();
}
/*%/dq_sum%*/
