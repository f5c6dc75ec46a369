// Warpgroups that load blocks of K and V and split them into their parts.
#pragma once

#include "params/forward.h"
#include "parts/mma/head_of_fp32.cuh"
#include "parts/mma/tile_order.cuh"
#include "parts/warpgroup.cuh"
#include "parts/wgmma_fp32/layout.cuh"
#include "parts/wgmma_fp32/ring_place.cuh"
#include "parts/wgmma_fp32/rows.cuh"
#include "parts/wgmma_fp32/split_copy.cuh"
/*%#by_keys%*/
#include "ptx/bulk_send.cuh"
/*%/by_keys%*/
/*%#cluster%*/
#include "ptx/cluster.cuh"
/*%/cluster%*/
#include "ptx/fence_async_shared.cuh"
#include "ptx/finite.cuh"
#include "ptx/mbarrier.cuh"
/*%#by_keys%*/
#include "ptx/mbarrier_bytes.cuh"
#include "ptx/named_barrier.cuh"
/*%/by_keys%*/

/*%#by_keys%*/
// Each CTA of a cluster splits half of a block, and sends its half to the other one.
/*%/by_keys%*/
struct Producer {
  unsigned shared;
  const ForwardParams& p;
  const float *k, *v;  // row 0 of the head
  RingPlace place;
  /*%#by_keys%*/
  static constexpr int kHalf = kTileN / kCluster;  // keys
  const int rank = cluster_rank();
  /*%/by_keys%*/

  __device__ __forceinline__ Producer(unsigned shared, const ForwardParams& p, const TileIndex& index)
      : shared(shared), p(p) {
    const int head_kv = divide(index.head, p.by_group);
    k = head_of(p.k, index.batch * p.k_batch, head_kv * p.k_head);
    v = head_of(p.v, index.batch * p.v_batch, head_kv * p.v_head);
    /*%#by_columns%*/
    k += cluster_rank() * kHeadDim;
    v += cluster_rank() * kHeadDimV;
    /*%/by_columns%*/
  }

  // Fills a block's place once it is empty, and tells the consumers.
  template <class Tile, int kColumns, class Prepare>
  __device__ __forceinline__ void fill(const Rows& rows, unsigned ring, unsigned empty, unsigned full,
                                       const Prepare& prepare) const {
    const auto wait = [&] { mbarrier_wait(empty + 8 * place.stage, place.parity ^ 1); };
    const unsigned tile = ring + place.stage * Tile::kBytes;
    /*%^by_keys%*/
    split_copy<Tile, kTileN, kColumns, 128>(rows, tile, threadIdx.x % 128, prepare, wait);
    fence_async_shared();
    __syncwarp();
    if (lane() == 0) mbarrier_arrive(full + 8 * place.stage);
    /*%/by_keys%*/
    /*%#by_keys%*/
    const Rows half{rows.head, rows.stride, rows.first + rank * kHalf, rows.end};
    const unsigned to = tile + rank * kHalf * kRowBytes;
    split_copy<Tile, kHalf, kColumns, 128>(half, to, threadIdx.x % 128, prepare, wait);
    fence_async_shared();
    named_barrier_sync(1 + kWarpgroups + threadIdx.x / 128, 128);
    exchange<Tile>(to, full + 8 * place.stage);
    /*%/by_keys%*/
  }
  /*%#by_keys%*/

  // Sends a half, part by part of each panel, and expects the other CTA's.
  template <class Tile>
  __device__ __forceinline__ void exchange(unsigned half, unsigned full) const {
    constexpr int kParcels = Tile::kBytes / Tile::kPartBytes, kParcelBytes = kHalf * kRowBytes;
    const int thread = threadIdx.x % 128, other = rank ^ 1;
    if (thread == 0) mbarrier_arrive_expecting(full, kParcels * kParcelBytes);
    if (thread < kParcels) {
      const unsigned parcel = half + thread * Tile::kPartBytes;
      bulk_send(in_cta(other, parcel), parcel, kParcelBytes, in_cta(other, full));
    }
    __syncwarp();  // so that lanes come to the barrier together
  }
  /*%/by_keys%*/

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
