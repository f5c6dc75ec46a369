// What a consumer shares with others: the rings of K and V that the producer fills, and barriers.
#pragma once
#include "parts/wgmma/layout.cuh"
/*%#cluster%*/
#include "ptx/cluster.cuh"
#include "ptx/cluster_arrive_read.cuh"
/*%/cluster%*/
#include "ptx/mbarrier.cuh"
/*%#ping_pong%*/
#include "ptx/named_barrier.cuh"
/*%/ping_pong%*/
/*%^split%*/
#include "ptx/named_barrier.cuh"
/*%/split%*/
/*%#even%*/
#include "ptx/named_barrier_any.cuh"
/*%/even%*/
/*%#ping_pong%*/
#include "ptx/named_barrier_arrive.cuh"
/*%/ping_pong%*/
#include "ptx/wgmma.cuh"

struct ConsumerRings {
  const unsigned shared;
  const int warpgroup;  // 0 .. kWarpgroups - 1
  RingPlace k_place{0, 0}, v_place{0, 0};
  unsigned k_tile, v_tile;  // lower halves of the descriptors of the blocks there (products.cuh)
  /*%#cluster%*/
  unsigned k_empty, v_empty;  // barriers of the CTAs that load K and V
  /*%/cluster%*/

  __device__ __forceinline__ ConsumerRings(unsigned shared_memory, int number)
      : shared(shared_memory),
        warpgroup(number),
        k_tile(static_cast<unsigned>(wgmma_descriptor(shared_memory + kK, 0))),
        v_tile(static_cast<unsigned>(wgmma_descriptor(shared_memory + kV, kTileN * kRowBytes))) {
    /*%#cluster%*/
    k_empty = in_cta(kLoaderOfK, shared_memory + kKEmpty);
    v_empty = in_cta(kLoaderOfV, shared_memory + kVEmpty);
    /*%/cluster%*/
  }

  __device__ __forceinline__ void wait_k() const {
    mbarrier_wait(shared + kKFull + 8 * k_place.stage, k_place.parity);
  }
  __device__ __forceinline__ void wait_v() const {
    mbarrier_wait(shared + kVFull + 8 * v_place.stage, v_place.parity);
  }

  // One arrival per warp: its products have read the block. The descriptors move along: computing them from
  // the stage would delay the next product.
  __device__ __forceinline__ void release_k() {
    /*%^cluster%*/
    if (lane() == 0) mbarrier_arrive(shared + kKEmpty + 8 * k_place.stage);
    /*%/cluster%*/
    /*%#cluster%*/
    if (lane() == 0) cluster_arrive_read(k_empty + 8 * k_place.stage);
    /*%/cluster%*/
    advance(k_place);
    k_tile += (k_place.stage == 0 ? 1 - kStages : 1) * (kKBytes / 16);
  }
  __device__ __forceinline__ void release_v() {
    /*%^cluster%*/
    if (lane() == 0) mbarrier_arrive(shared + kVEmpty + 8 * v_place.stage);
    /*%/cluster%*/
    /*%#cluster%*/
    if (lane() == 0) cluster_arrive_read(v_empty + 8 * v_place.stage);
    /*%/cluster%*/
    advance(v_place);
    v_tile += (v_place.stage == 0 ? 1 - kStages : 1) * (kVBytes / 16);
  }

  /*%#ping_pong%*/
  // Warpgroups take turns to issue their products, so that one's softmax runs beside the other's products.
  __device__ __forceinline__ void take_turn() const { named_barrier_sync(1 + warpgroup, 256); }
  __device__ __forceinline__ void pass_turn() const {
    named_barrier_arrive(warpgroup + 1 == kWarpgroups ? 1 : 2 + warpgroup, 256);
  }
  /*%/ping_pong%*/

  /*%^split%*/
  // Waits at the warpgroup's own barrier.
  __device__ __forceinline__ void meet() const { named_barrier_sync(8 + warpgroup, 128); }
  /*%/split%*/
  /*%#even%*/
  // Whether `says` is true in any of the warpgroup's threads. All lanes agree, which ptxas only knows if one
  // lane tells the others.
  __device__ __forceinline__ bool any(bool says) const {
    return __shfl_sync(0xffffffffu, named_barrier_any(8 + warpgroup, 128, says), 0) != 0;
  }
  /*%/even%*/

  // Takes blocks that other rows of the tile see and these rows do not, and gives them back, so that the
  // rings move on.
  /*%#ping_pong%*/
  __device__ __forceinline__ void pass_blocks(int count, int turns) {
  /*%/ping_pong%*/
  /*%^ping_pong%*/
  __device__ __forceinline__ void pass_blocks(int count) {
  /*%/ping_pong%*/
#pragma unroll 1  // few, and rarely any
    for (; count > 0; --count) {
      wait_k();
      release_k();
      /*%#ping_pong%*/
      if (turns-- > 0) {
        take_turn();
        pass_turn();
      }
      /*%/ping_pong%*/
      wait_v();
      release_v();
    }
  }
};
