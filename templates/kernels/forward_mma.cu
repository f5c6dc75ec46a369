// FlashAttention-2's forward pass (Dao, arXiv 2307.08691) on warp-level tensor cores. A CTA computes kTileM rows of O of
// one head; K and V stream through shared memory from the last key that any row sees down to the first. Each warp owns its
// rows from Q to O and never talks to the others (split-Q).
#include "params/forward.h"
#include "parts/epilogue.cuh"
/*%#async%*/
#include "parts/loader_async.cuh"
/*%/async%*/
/*%^async%*/
#include "parts/loader_staged.cuh"
/*%/async%*/
#include "parts/mask.cuh"
#include "parts/products.cuh"
#include "parts/softmax.cuh"
#include "parts/tile_order.cuh"

template <bool kValue>
struct Bool {
  static constexpr bool value = kValue;
};

// Element (row 0, column 0) of a head.
__device__ __forceinline__ const unsigned short* head_of(const void* tensor, long long batch, long long head) {
  return static_cast<const unsigned short*>(tensor) + batch + head;
}

extern "C" __global__ void __launch_bounds__(kThreads /*%#min_ctas%*/, kMinCtas /*%/min_ctas%*/)
    FLASHJIT_ENTRY(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned slots = shared_address(shared);  // kStages of them, each a tile of K and a tile of V
  const unsigned q_tile = slots + kOffsetQ;

  const TileIndex index = tile_of_block(params);
  const int head_kv = index.head / params.group;
  const int first_row = index.m * kTileM;                     // of the CTA
  const int warp_row = threadIdx.x / 32 * kRowsPerWarp;       // of the warp, in the tile
  const int lane = threadIdx.x % 32;
  const float scale_log2 = fmaxf(params.scale_log2, 1e-30f);  // were it 0, 0 * -inf would be NaN

  // Tiles of keys unmasked_end … masked_end - 1 need a mask, those below do not, those above are not seen at all.
  /*%#causal%*/
  const int seen_by_first = params.seqlen_k - params.seqlen_q + first_row + 1;  // keys that row first_row sees, if positive
  const int seen_by_last = min(params.seqlen_k, seen_by_first + kTileM - 1);
  const int unmasked_end = max(seen_by_first, 0) / kTileN;
  const int masked_end = (max(seen_by_last, 0) + kTileN - 1) / kTileN;
  /*%/causal%*/
  /*%^causal%*/
  const int unmasked_end = params.seqlen_k / kTileN;
  const int masked_end = (params.seqlen_k + kTileN - 1) / kTileN;
  /*%/causal%*/

  SoftmaxRows rows[kRowTiles];
  float output[kRowTiles][kHeadDimV / 2] = {};  // this thread's part of the warp's rows of O

  if (masked_end > 0) {
    TileCopy<kTileM, kHeadDim> q_copy(head_of(params.q, index.batch * params.q_batch, index.head * params.q_head), params.q_row);
    TileCopy<kTileN, kHeadDim> k_copy(head_of(params.k, index.batch * params.k_batch, head_kv * params.k_head), params.k_row);
    TileCopy<kTileN, kHeadDimV> v_copy(head_of(params.v, index.batch * params.v_batch, head_kv * params.v_head), params.v_row);

    // The last tile may reach beyond seqlen_k: its copies are guarded, no other's.
    int n = masked_end - 1;
    q_copy.start<true>(q_tile, first_row, params.seqlen_q);
    /*%^async%*/
    q_copy.finish();
    /*%/async%*/
    k_copy.start<true>(slots, n * kTileN, params.seqlen_k);
    /*%#async%*/
    /*%#split_kv%*/
    // Groups of copies are committed in the order K, V, K, V … of the tiles, the first with Q. 2 * kStages - 1 come before
    // the loop, and each half step commits one more (empty where the tiles have run out), so that at most kPending are
    // under way when the one that is needed has arrived.
    constexpr int kPending = 2 * (kStages - 1);
    cp_async_commit();
#pragma unroll
    for (int ahead = 1; ahead < kStages; ++ahead) {
      const unsigned slot = slots + (ahead - 1) * kSlotBytes;
      if (ahead == 1) {
        v_copy.start<true>(slot + kTileBytesK, n * kTileN, params.seqlen_k);
      } else if (n + 1 >= ahead) {
        v_copy.start<false>(slot + kTileBytesK, (n + 1 - ahead) * kTileN, params.seqlen_k);
      }
      cp_async_commit();
      if (n >= ahead) k_copy.start<false>(slot + kSlotBytes, (n - ahead) * kTileN, params.seqlen_k);
      cp_async_commit();
    }
    /*%/split_kv%*/
    /*%^split_kv%*/
    // A group of copies is a tile of K and of V, the first with Q. kStages - 1 are committed before the loop, and each step
    // commits one more (empty where the tiles have run out).
    constexpr int kPending = kStages - 2;
    v_copy.start<true>(slots + kTileBytesK, n * kTileN, params.seqlen_k);
    cp_async_commit();
#pragma unroll
    for (int ahead = 1; ahead < kStages - 1; ++ahead) {
      if (n >= ahead) {
        k_copy.start<false>(slots + ahead * kSlotBytes, (n - ahead) * kTileN, params.seqlen_k);
        v_copy.start<false>(slots + ahead * kSlotBytes + kTileBytesK, (n - ahead) * kTileN, params.seqlen_k);
      }
      cp_async_commit();
    }
    /*%/split_kv%*/
    /*%/async%*/

    // Where this lane starts to read.
    const unsigned q_lane = q_tile + warp_row * TileQK::kPitch + lane_offset_rows_first<TileQK>();
    const unsigned k_lane = slots + lane_offset_columns_first<TileQK>();
    const unsigned v_lane = slots + kTileBytesK + lane_offset_rows_first<TileV>();
    /*%#q_in_regs%*/
    // Q waits where the first step's copies will go: take it before they start.
    unsigned q[kStepsQK][kRowTiles][4];
    /*%#async%*/
    cp_async_wait<kPending>();
    /*%/async%*/
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kStepsQK; ++i) load_q(q[i], q_lane, i);
    /*%/q_in_regs%*/

    int stage = 0;
    // S of kBlockN keys of tile n.
    const auto multiply = [&](float (&scores)[kRowTiles][kBlockN / 2], int block) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < kBlockN / 2; ++i) scores[r][i] = 0;
      }
#pragma unroll
      for (int i = 0; i < kStepsQK; ++i) {
        /*%#q_in_regs%*/
        multiply_qk(scores, q[i], k_lane + stage * kSlotBytes, block, i);
        /*%/q_in_regs%*/
        /*%^q_in_regs%*/
        unsigned q[kRowTiles][4];
        load_q(q, q_lane, i);
        multiply_qk(scores, q, k_lane + stage * kSlotBytes, block, i);
        /*%/q_in_regs%*/
      }
    };
    // Their softmax, and O += P V.
    const auto accumulate = [&](float (&scores)[kRowTiles][kBlockN / 2], int block, auto masked) {
      const int first_key = n * kTileN + block * kBlockN;
      float peak[kRowTiles][2];
      bool move = false;
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        /*%#causal%*/
        if constexpr (masked.value) mask_keys<1>(scores[r], seen_by_first + warp_row + 16 * r - first_key);
        /*%/causal%*/
        /*%^causal%*/
        if constexpr (masked.value) mask_keys<0>(scores[r], params.seqlen_k - first_key);
        /*%/causal%*/
        find_peaks(scores[r], peak[r]);
        move |= outgrown(rows[r], peak[r], scale_log2);
      }
      if (__any_sync(0xffffffffu, move)) {
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) move_shift(rows[r], peak[r], output[r], scale_log2);
      }
#pragma unroll
      for (int i = 0; i < kBlockN / 16; ++i) {
        unsigned p[kRowTiles][4];
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) exponentiate(rows[r], &scores[r][8 * i], p[r], scale_log2);
        multiply_pv(output, p, v_lane + stage * kSlotBytes, block, i);
      }
    };

    // One tile of keys.
    const auto step = [&](auto masked) {
      // K has arrived, and no warp reads the previous step's tiles any more.
      /*%#async%*/
      cp_async_wait<kPending>();
      /*%/async%*/
      /*%^async%*/
      k_copy.finish();
      /*%/async%*/
      __syncthreads();
      const int next = n + 1 - kStages;  // the tile that takes the previous step's slot
      const unsigned next_slot = slots + (stage == 0 ? kStages - 1 : stage - 1) * kSlotBytes;
      /*%#split_kv%*/
      if (next >= 0) v_copy.start<masked.value && kStages == 1>(next_slot + kTileBytesK, next * kTileN, params.seqlen_k);
      /*%/split_kv%*/
      /*%^split_kv%*/
      if (next >= 0) {
        k_copy.start<false>(next_slot, next * kTileN, params.seqlen_k);
        v_copy.start<false>(next_slot + kTileBytesK, next * kTileN, params.seqlen_k);
      }
      /*%/split_kv%*/
      /*%#async%*/
      cp_async_commit();
      /*%/async%*/

      /*%#causal%*/
      // The diagonal hides the blocks right of the warp's last row.
      const int seen_by_warp = seen_by_first + warp_row + kRowsPerWarp - 1 - n * kTileN;
      const auto seen = [&](int block) { return !masked.value || block * kBlockN < seen_by_warp; };
      /*%/causal%*/
      /*%^causal%*/
      const auto seen = [&](int) { return true; };
      /*%/causal%*/
      /*%#split_kv%*/
      float scores[kRowTiles][kBlockN / 2];
      if (seen(0)) multiply(scores, 0);
      // V has arrived, and no warp reads K any more.
      /*%#async%*/
      cp_async_wait<kPending>();
      /*%/async%*/
      /*%^async%*/
      v_copy.finish();
      /*%/async%*/
      __syncthreads();
      if (n >= kStages) k_copy.start<false>(slots + stage * kSlotBytes, (n - kStages) * kTileN, params.seqlen_k);
      /*%#async%*/
      cp_async_commit();
      /*%/async%*/
      if (seen(0)) accumulate(scores, 0, masked);
      /*%/split_kv%*/
      /*%^split_kv%*/
      if constexpr (masked.value) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          float scores[kRowTiles][kBlockN / 2];
          if (!seen(block)) break;
          multiply(scores, block);
          accumulate(scores, block, masked);
        }
      } else {
        // S of the next block is computed before the softmax of this one, so that the tensor cores work meanwhile.
        float scores[2][kRowTiles][kBlockN / 2];
        multiply(scores[0], 0);
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          if (block + 1 < kBlocks) multiply(scores[(block + 1) % 2], block + 1);
          accumulate(scores[block % 2], block, masked);
        }
      }
      /*%/split_kv%*/
      stage = stage + 1 == kStages ? 0 : stage + 1;
    };
    for (; n >= unmasked_end; --n) step(Bool<true>{});
#pragma unroll kUnroll
    for (; n >= 0; --n) step(Bool<false>{});
  }

  // O takes the place of the first tiles once all warps have read theirs.
  __syncthreads();
  const int rows_left = params.seqlen_q - first_row - warp_row;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    normalise(rows[r], output[r]);
    stage_output(output[r], slots, warp_row + 16 * r);
  }
  __syncwarp();
  char* const to = static_cast<char*>(params.o) +
                   2 * (index.batch * params.o_batch + index.head * params.o_head + (first_row + warp_row) * params.o_row);
  write_output<kRowsPerWarp>(slots, warp_row, to, 2 * params.o_row, rows_left);
  /*%#lse%*/
  if (params.lse != nullptr && lane % 4 == 0) {
    float* const lse = params.lse + (static_cast<long long>(index.batch) * params.heads + index.head) * params.seqlen_q + first_row + warp_row;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * r + 8 * half + lane / 4;
        if (row < rows_left) lse[row] = log_sum_exp(rows[r], half);
      }
    }
  }
  /*%/lse%*/
}
