// The warpgroups that load K and V, and tiles of Q and dO, and split them into their parts.
#pragma once

#include "params/backward.h"
#include "parts/mma/backward_key_tile.cuh"
#include "parts/mma/backward_rows_split.cuh"
#include "parts/mma/head_of_fp32.cuh"
#include "parts/wgmma_fp32/ring_place.cuh"
#include "parts/wgmma_fp32/rows.cuh"
#include "parts/wgmma_fp32/split_copy.cuh"
#include "parts/wgmma_fp32_backward/arrive.cuh"
#include "parts/wgmma_fp32_backward/layout.cuh"
#include "parts/wgmma_fp32_backward/steps.cuh"
#include "ptx/fence_async_shared.cuh"
#include "ptx/finite.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/thread_index.cuh"

struct Producer {
  unsigned shared;
  const BackwardParams& params;
  const KeyTile tile;

  __device__ __forceinline__ Producer(unsigned shared, const BackwardParams& params)
      : shared(shared), params(params), tile(key_tile_of_block(params)) {}

  // Tells the consumers what this warp has written.
  __device__ __forceinline__ static void arrive(unsigned full) {
    fence_async_shared();
    __syncwarp();
    arrive_for_warp(full);
  }
  __device__ __forceinline__ static float as_it_is(float x) { return x; }

  // A tile, by the threads of all producers.
  template <class Tile, int kColumns, class Prepare, class Wait>
  __device__ __forceinline__ static void copy(const Rows& rows, unsigned to, const Prepare& prepare,
                                              const Wait& wait) {
    constexpr int kCopiers = 128 * kProducers;
    split_copy<Tile, Tile::kRows, kColumns, kCopiers>(rows, to, thread_index() % kCopiers, prepare, wait);
  }

  // Whoever waits for the first tile of dO or Q waits for these, too.
  __device__ __forceinline__ void produce_keys() const {
    const float* const k = head_of(params.k, tile.batch * params.k_batch, tile.head * params.k_head);
    const float* const v = head_of(params.v, tile.batch * params.v_batch, tile.head * params.v_head);
    const int first_key = tile.n * kTileN;
    const auto wait_for_nothing = [] {};
    copy<TileQK, kHeadDim>({k, params.k_row, first_key, params.seqlen_k}, shared + kK, finite,
                           wait_for_nothing);
    copy<TileV, kHeadDimV>({v, params.v_row, first_key, params.seqlen_k}, shared + kV, as_it_is,
                           wait_for_nothing);
  }

  // dO comes first, since its place is free sooner: dV is computed before dK.
  __device__ __forceinline__ void produce() const {
    Steps step(params, tile);
    if (step.left == 0) return;
    produce_keys();
    const int head = tile.head * params.group;
    const float* q = head_of(params.q, tile.batch * params.q_batch, head * params.q_head);
    const float* dout = head_of(params.dout, tile.batch * params.dout_batch, head * params.dout_head);
    RingPlace place;
    while (step.left > 0) {
      const int first_row = step.m * kTileM, barrier = 8 * place.stage, parity = place.parity ^ 1;
      copy<TileV, kHeadDimV>({dout, params.dout_row, first_row, params.seqlen_q},
                             shared + kDout + place.stage * TileV::kBytes, as_it_is,
                             [&] { mbarrier_wait(shared + kDoutEmpty + barrier, parity); });
      arrive(shared + kDoutFull + barrier);
      const float row = load_row(params, step.pair, first_row);
      copy<TileQK, kHeadDim>({q, params.q_row, first_row, params.seqlen_q},
                             shared + kQ + place.stage * TileQK::kBytes, as_it_is,
                             [&] { mbarrier_wait(shared + kQEmpty + barrier, parity); });
      // LSE was last read before dV was computed, and delta before dK.
      store_row(shared + kRows + place.stage * kRowsBytes, row);
      arrive(shared + kQFull + barrier);
      place.advance();
      if (step.advance()) {
        q += params.q_head;
        dout += params.dout_head;
      }
    }
  }
};
