// A warpgroup that computes 64 rows of O.
#pragma once

#include "params/forward.h"
#include "parts/mma/head_of_fp32.cuh"
#include "parts/mma/softmax.cuh"
#include "parts/mma/tile_order.cuh"
#include "parts/mma/visible_keys.cuh"
#include "parts/warpgroup.cuh"
#include "parts/wgmma_fp32/layout.cuh"
#include "parts/wgmma_fp32/products.cuh"
#include "parts/wgmma_fp32/query.cuh"
#include "parts/wgmma_fp32/ring_place.cuh"
#include "parts/wgmma_fp32/rows.cuh"
/*%#by_columns%*/
#include "parts/wgmma_fp32/sum_of_scores.cuh"
/*%/by_columns%*/
/*%#cluster%*/
#include "ptx/cluster.cuh"
/*%/cluster%*/
/*%#by_keys%*/
#include "ptx/cluster_arrive_read.cuh"
/*%/by_keys%*/
#include "ptx/mbarrier.cuh"
#include "ptx/pin.cuh"
#include "ptx/wgmma.cuh"

struct Consumer {
  unsigned shared;
  int warpgroup;  // which of those that compute
  int first_row;  // in the tile
  /*%#by_keys%*/
  unsigned other;  // the other CTA's shared memory
  /*%/by_keys%*/
  RingPlace place;
  /*%#by_columns%*/
  SumOfScores sum_of_scores{shared, warpgroup};
  /*%/by_columns%*/
  /*%#q_in_regs%*/
  unsigned q[kQSteps][kQRegisterParts][4];
  /*%/q_in_regs%*/
  SoftmaxRows rows;
  float output[kHeadDimV / 2];  // this thread's part of the warpgroup's rows of O

  __device__ __forceinline__ Consumer(unsigned shared, int warpgroup) : shared(shared), warpgroup(warpgroup) {
    /*%^by_keys%*/
    first_row = 64 * warpgroup;
    /*%/by_keys%*/
    /*%#by_keys%*/
    // CTAs take 64 rows in turn, so that none has all the late ones, which may see more keys.
    const int rank = cluster_rank();
    first_row = 64 * (kCluster * warpgroup + rank);
    other = in_cta(rank ^ 1, shared);
    /*%/by_keys%*/
  }

  __device__ __forceinline__ int warp_row() const { return first_row + 16 * warp_of_warpgroup(); }

  __device__ __forceinline__ void start(const ForwardParams& p, const TileIndex& index) {
    const float* head = head_of(p.q, index.batch * p.q_batch, index.head * p.q_head);
    /*%#by_columns%*/
    head += cluster_rank() * kHeadDim;
    /*%/by_columns%*/
    const Rows from{head, p.q_row, index.m * kTileM + first_row, p.seqlen_q};
    /*%#q_in_shared%*/
    store_query(shared + kQ + warpgroup * TileQ::kBytes, from, p.scale_log2, warpgroup);
    /*%/q_in_shared%*/
    /*%#q_in_regs%*/
    load_query(q, from, p.scale_log2);
    /*%/q_in_regs%*/
  }

  __device__ __forceinline__ void wait(unsigned full) const {
    mbarrier_wait(shared + full + 8 * place.stage, place.parity);
  }
  // Called once products have read the block.
  __device__ __forceinline__ void release(unsigned empty) const {
    if (lane() == 0) mbarrier_arrive(shared + empty + 8 * place.stage);
    /*%#by_keys%*/
    if (lane() == 0) cluster_arrive_read(other + empty + 8 * place.stage);
    /*%/by_keys%*/
    __syncwarp();  // ptxas has been seen to let the lane that arrives go on alone
  }

  // scores = Q K^T.
  __device__ __forceinline__ void multiply_qk(float (&scores)[kTileN / 2]) {
    float sum[kScoreSums];
    wait(kKFull);
    wgmma_scores(sum,
                 /*%#q_in_regs%*/
                 q,
                 /*%/q_in_regs%*/
                 /*%#q_in_shared%*/
                 lower_half(shared + kQ + warpgroup * TileQ::kBytes),
                 /*%/q_in_shared%*/
                 lower_half(shared + kK + place.stage * TileK::kBytes));
    wgmma_wait<0>();
    pin(sum);
    release(kKEmpty);
#pragma unroll
    for (int i = 0; i < kTileN / 2; ++i) {
      /*%#paired%*/
      scores[i] = sum[i] + (sum[kTileN / 2 + i] + sum[kTileN + i]);
      /*%/paired%*/
      /*%^paired%*/
      scores[i] = sum[i];
      /*%/paired%*/
    }
    /*%#by_columns%*/
    sum_of_scores.add(scores);
    /*%/by_columns%*/
  }

  // How many columns of V a product takes that begins with column kFirst.
  template <int kFirst>
  static constexpr int kColumnsFrom =
      kHeadDimV - kFirst < kColumnsAtOnce ? kHeadDimV - kFirst : kColumnsAtOnce;

  // Begins sum = P V for the columns from kFirst on.
  template <int kFirst>
  __device__ __forceinline__ void multiply_pv(float (&sum)[kColumnsFrom<kFirst> / 2],
                                              const unsigned (&weights)[kTileN / 16][kParts][4]) const {
    constexpr int kOffset = kFirst / 64 * TileV::kPanelBytes + kFirst % 64 * 2;
    wgmma_values(sum, weights, lower_half(shared + kV + place.stage * TileV::kBytes + kOffset));
  }

  // Adds a sum that has come to O. A block's part is summed by itself, since O is larger the more blocks came
  // before.
  template <int kFirst>
  __device__ __forceinline__ void add(float (&sum)[kColumnsFrom<kFirst> / 2]) {
    pin(sum);
#pragma unroll
    for (int i = 0; i < kColumnsFrom<kFirst> / 2; ++i) output[kFirst / 2 + i] += sum[i];
  }

  /*%^alone%*/
  // output += P V, some columns after others.
  template <int kFirst = 0>
  __device__ __forceinline__ void add_pv(const unsigned (&weights)[kTileN / 16][kParts][4]) {
    float sum[kColumnsFrom<kFirst> / 2];
    multiply_pv<kFirst>(sum, weights);
    wgmma_wait<0>();
    add<kFirst>(sum);
    constexpr int kNext = kFirst + kColumnsFrom<kFirst>;
    if constexpr (kNext < kHeadDimV) add_pv<kNext>(weights);
  }
  /*%/alone%*/
  /*%#alone%*/
  // output += P V, some columns after others. While a sum is added, tensor cores have the next columns'
  // product: there is no other warpgroup to give them one.
  __device__ __forceinline__ void add_pv(const unsigned (&weights)[kTileN / 16][kParts][4]) {
    float sum[kColumnsFrom<0> / 2];
    multiply_pv<0>(sum, weights);
    add_from<0>(sum, weights);
  }
  template <int kFirst>
  __device__ __forceinline__ void add_from(float (&sum)[kColumnsFrom<kFirst> / 2],
                                           const unsigned (&weights)[kTileN / 16][kParts][4]) {
    constexpr int kNext = kFirst + kColumnsFrom<kFirst>;
    if constexpr (kNext < kHeadDimV) {
      float next[kColumnsFrom<kNext> / 2];
      multiply_pv<kNext>(next, weights);
      wgmma_wait<1>();
      add<kFirst>(sum);
      add_from<kNext>(next, weights);
    } else {
      wgmma_wait<0>();
      add<kFirst>(sum);
    }
  }
  /*%/alone%*/

  // From the last block that any row of the tile sees down to the first.
  __device__ __forceinline__ void consume(const ForwardParams& p, const VisibleKeys& visible) {
#pragma unroll
    for (float& x : output) x = 0;
    for (int n = visible.masked_end - 1; n >= 0; --n, place.advance()) {
      /*%#causal%*/
      // Rows further down see this block, but none of the warpgroup's.
      if (visible.by_first + first_row + 63 <= n * kTileN) {
        wait(kKFull);
        release(kKEmpty);
        wait(kVFull);
        release(kVEmpty);
        continue;
      }
      /*%/causal%*/
      float scores[kTileN / 2];
      multiply_qk(scores);
      if (n >= visible.unmasked_end) visible.mask(scores, warp_row(), n * kTileN, p);
      float peak[2];
      find_peaks(scores, peak);
      if (__any_sync(0xffffffffu, outgrown(rows, peak, 1))) move_shift(rows, peak, output, 1);
      /*%#by_columns%*/
      // Not before: the vote looks at every lane's peaks, so all that came from the other CTA has been read.
      sum_of_scores.tell_read();
      /*%/by_columns%*/
      exponentiate(rows, scores);
      unsigned weights[kTileN / 16][kParts][4];
#pragma unroll
      for (int step = 0; step < kTileN / 16; ++step) split_fragment(weights[step], &scores[8 * step]);
      wait(kVFull);
      add_pv(weights);
      release(kVEmpty);
    }
  }
};
