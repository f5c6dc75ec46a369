// Warpgroups that load blocks of K and V and split them into their parts.
#pragma once

#include "params/forward.h"
#include "parts/mma/head_of_fp32.cuh"
#include "parts/mma/tile_order.cuh"
#include "parts/warpgroup.cuh"
#include "parts/wgmma_fp32/layout.cuh"
#include "parts/wgmma_fp32/rows.cuh"
#include "parts/wgmma_fp32/split_copy.cuh"
#include "ptx/fence_async_shared.cuh"
#include "ptx/finite.cuh"
#include "ptx/mbarrier.cuh"

struct Producer {
  unsigned shared;
  const ForwardParams& p;
  const float *k, *v;  // row 0 of the head
  RingPlace place;

  __device__ __forceinline__ Producer(unsigned shared, const ForwardParams& p, const TileIndex& index)
      : shared(shared), p(p) {
    const int head_kv = divide(index.head, p.by_group);
    k = head_of(p.k, index.batch * p.k_batch, head_kv * p.k_head);
    v = head_of(p.v, index.batch * p.v_batch, head_kv * p.v_head);
  }

  // Fills a block's place once it is empty, and tells the consumers.
  template <class Tile, int kColumns, class Prepare>
  __device__ __forceinline__ void fill(const Rows& rows, unsigned ring, unsigned empty, unsigned full,
                                       const Prepare& prepare) const {
    split_copy<Tile, kColumns>(rows, ring + place.stage * Tile::kBytes, prepare,
                               [&] { mbarrier_wait(empty + 8 * place.stage, place.parity ^ 1); });
    fence_async_shared();
    __syncwarp();
    if (lane() == 0) mbarrier_arrive(full + 8 * place.stage);
  }

  __device__ __forceinline__ void fill_k(int n) const {
    fill<TileK, kHeadDim>({k, p.k_row, n * kTileN, p.seqlen_k}, shared + kK, shared + kKEmpty,
                          shared + kKFull, finite);
  }
  __device__ __forceinline__ void fill_v(int n) const {
    fill<TileV, kHeadDimV>({v, p.v_row, n * kTileN, p.seqlen_k}, shared + kV, shared + kVEmpty,
                           shared + kVFull, [](float x) { return x; });
  }

  // From block end - 1, the last that any row sees, down to the first.
  /*%#two_producers%*/
  // One warpgroup has K, the other one V.
  __device__ __forceinline__ void produce(int end, int warpgroup) {
    for (int n = end - 1; n >= 0; --n, place.advance()) {
      if (warpgroup == 0) {
        fill_k(n);
      } else {
        fill_v(n);
      }
    }
  }
  /*%/two_producers%*/
  /*%^two_producers%*/
  __device__ __forceinline__ void produce(int end) {
    for (int n = end - 1; n >= 0; --n, place.advance()) {
      fill_k(n);
      fill_v(n);
    }
  }
  /*%/two_producers%*/
};
