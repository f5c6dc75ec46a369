// FlashAttention-2's forward pass (Dao, arXiv 2307.08691) in fp32, on tensor cores that multiply bf16: each
// number is the sum of three bf16 numbers, and each product the sum of six (Henry, Tang, Heinecke,
// "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", 2019). A CTA
// computes kTileM rows of O of one head; K and V stream through shared memory from the last key that any row
// sees down to the first. Each warp owns 16 rows from Q to O and never talks to the others (split-Q).
#include "params/forward.h"
#include "parts/mma/epilogue_fp32.cuh"
#include "parts/mma/loader_split.cuh"
#include "parts/mma/softmax.cuh"
#include "parts/mma/split_products.cuh"
#include "parts/mma/tile_order.cuh"
#include "parts/mma/visible_keys.cuh"
#include "ptx/block_index.cuh"
#include "ptx/finite.cuh"
#include "ptx/shared_address.cuh"

// scores = Q K^T for the warp's rows. q_lane, k_lane: where this lane starts in the first part.
__device__ __forceinline__ void multiply_qk(float (&scores)[kTileN / 2], unsigned q_lane, unsigned k_lane) {
  SplitSum<kTileN / 2> sum;
  multiply_rows<TileQK, kTileM, kTileN, kTileN>(sum, q_lane, k_lane);
#pragma unroll
  for (int i = 0; i < kTileN / 2; ++i) scores[i] = sum.at(i);
}

// output += P V.
__device__ __forceinline__ void add_pv(float (&output)[kHeadDimV / 2], const float (&weights)[kTileN / 2],
                                       unsigned v_lane) {
  unsigned p[kTileN / 16][kParts][4];
#pragma unroll
  for (int step = 0; step < kTileN / 16; ++step) split_fragment(p[step], &weights[8 * step]);
  add_columns<kHeadDimV, 1>(output, p, v_lane, 0);
}

extern "C" __global__ void __launch_bounds__(kThreads/*%#min_ctas%*/, kMinCtas/*%/min_ctas%*/)
    FLASHJIT_ENTRY(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  // The parts of a tile of K, of V, and of Q.
  const unsigned k_tile = shared_address(shared), v_tile = k_tile + kOffsetV, q_tile = k_tile + kOffsetQ;

  const TileIndex index = tile_at(params, block_index());
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x / 32 * 16;  // the warp's first, in the tile
  const int first_row = index.m * kTileM;      // of the CTA

  const VisibleKeys visible(params, first_row);

  SoftmaxRows rows;
  float output[kHeadDimV / 2] = {};  // this thread's part of the warp's rows of O

  if (visible.masked_end > 0) {
    const int head_kv = divide(index.head, params.by_group);
    SplitCopy<kTileN, kHeadDim> k_copy(
        head_of(params.k, index.batch * params.k_batch, head_kv * params.k_head), params.k_row);
    SplitCopy<kTileN, kHeadDimV> v_copy(
        head_of(params.v, index.batch * params.v_batch, head_kv * params.v_head), params.v_row);
    {
      // Q takes the softmax's scale: S comes out in units of log2, and scores that equal the shift weigh
      // exactly 1.
      SplitCopy<kTileM, kHeadDim> q_copy(
          head_of(params.q, index.batch * params.q_batch, index.head * params.q_head), params.q_row);
      q_copy.start(first_row, params.seqlen_q);
      q_copy.finish(q_tile, [&](float x) { return x * params.scale_log2; });
    }

    int n = visible.masked_end - 1;
    k_copy.start(n * kTileN, params.seqlen_k);

    // Where this lane starts to read.
    const unsigned q_lane = q_tile + warp_row * TileQK::kPitch + lane_offset_rows_first<TileQK>(lane);
    const unsigned k_lane = k_tile + lane_offset_columns_first<TileQK>(lane);
    const unsigned v_lane = v_tile + lane_offset_rows_first<TileV>(lane);

    for (; n >= 0; --n) {
      // V is loaded beside the first product, and the next tile of K beside the second, so that registers
      // hold only one of them at a time.
      k_copy.finish(k_tile, finite);
      __syncthreads();
      v_copy.start(n * kTileN, params.seqlen_k);
      float scores[kTileN / 2];
      multiply_qk(scores, q_lane, k_lane);
      if (n >= visible.unmasked_end) visible.mask(scores, warp_row, n * kTileN, params);

      v_copy.finish(v_tile, [](float x) { return x; });
      __syncthreads();
      if (n > 0) k_copy.start((n - 1) * kTileN, params.seqlen_k);
      float peak[2];
      find_peaks(scores, peak);
      if (__any_sync(0xffffffffu, outgrown(rows, peak, 1))) move_shift(rows, peak, output, 1);
      exponentiate(rows, scores);
      add_pv(output, scores, v_lane);
    }
  }

  write_rows(params, index, first_row + warp_row, 0, rows, output);
}
