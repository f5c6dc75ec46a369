// FlashAttention-2's forward pass (Dao, arXiv 2307.08691) on warp-level tensor cores. A CTA computes kTileM
// rows of O of one head; K and V stream through shared memory from the last key that any row sees down to the
// first. Each warp owns its rows from Q to O and never talks to the others (split-Q).
#include "params/forward.h"
#include "parts/mma/epilogue.cuh"
#include "parts/mma/head_of.cuh"
/*%#async%*/
#include "parts/mma/loader_async.cuh"
/*%/async%*/
/*%^async%*/
#include "parts/mma/lane_starts.cuh"
#include "parts/mma/loader_staged.cuh"
/*%/async%*/
/*%#optimistic%*/
#include "parts/mma/multiply_columns.cuh"
/*%/optimistic%*/
#include "parts/mma/products.cuh"
#include "parts/mma/row_tiles.cuh"
#include "parts/mma/tile_order.cuh"
#include "parts/mma/visible_keys.cuh"
#include "ptx/block_index.cuh"
#include "ptx/shared_address.cuh"
#include "ptx/thread_index.cuh"

extern "C" __global__ void __launch_bounds__(kThreads/*%#min_ctas%*/, kMinCtas/*%/min_ctas%*/)
    FLASHJIT_ENTRY(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned slots = shared_address(shared);  // kStages of them, each a tile of K and a tile of V
  const unsigned q_tile = slots + kOffsetQ;

  const TileIndex index = tile_at(params, block_index());
  const int first_row = index.m * kTileM;                // of the CTA
  const int warp_row = threadIdx.x / 32 * kRowsPerWarp;  // the warp's first, in the tile
  const VisibleKeys visible(params, first_row);

  SoftmaxRows rows[kRowTiles];
  float output[kRowTiles][kHeadDimV / 2] = {};  // this thread's part of the warp's rows of O

  if (visible.masked_end > 0) {
    const int head_kv = divide(index.head, params.by_group);
    TileCopy<kTileM, kHeadDim> q_copy(
        head_of(params.q, index.batch * params.q_batch, index.head * params.q_head), params.q_row);
    TileCopy<kTileN, kHeadDim> k_copy(
        head_of(params.k, index.batch * params.k_batch, head_kv * params.k_head), params.k_row);
    TileCopy<kTileN, kHeadDimV> v_copy(
        head_of(params.v, index.batch * params.v_batch, head_kv * params.v_head), params.v_row);

    // The last tile may reach beyond seqlen_k, so its copies are guarded, and no other tile's are.
    const int last = visible.masked_end - 1;
    int n = last;
    q_copy.start<true>(q_tile, first_row, params.seqlen_q);
    /*%^async%*/
    q_copy.finish();
    /*%/async%*/
    k_copy.start<true>(slots, n * kTileN, params.seqlen_k);
    /*%#async%*/
    /*%#one_stage%*/
    // A group of copies is a tile of K or of V; the first group also has Q. Except at the start, only one
    // group is under way at a time.
    constexpr int kPending = 0;
    cp_async_commit();
    /*%/one_stage%*/
    /*%#rings_apart%*/
    // Groups of copies are committed in the order K, V, K, V … of the tiles; the first group also has Q. Some
    // are committed before the loop, and each half step commits one more (empty once the tiles have run out).
    // So a group that is needed has arrived when at most kPending are under way.
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
    /*%/rings_apart%*/
    /*%^kv_apart%*/
    // A group of copies is a tile of K and one of V; the first group also has Q. kStages - 1 groups are
    // committed before the loop, and each step commits one more (empty once the tiles have run out).
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
    /*%/kv_apart%*/
    /*%/async%*/

    /*%#async%*/
    // Where this lane starts to read.
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned q_lane =
        q_tile + warp * kRowsPerWarp * TileQK::kPitch + lane_offset_rows_first<TileQK>(lane);
    const unsigned k_lane = slots + lane_offset_columns_first<TileQK>(lane);
    const unsigned v_lane = slots + kTileBytesK + lane_offset_rows_first<TileV>(lane);
    /*%/async%*/
    /*%#q_in_regs%*/
    // Q lies where the first step's copies will go, so warps take Q before these copies start.
    unsigned q[kStepsQK][kRowTiles][4];
    /*%#async%*/
    cp_async_wait<kPending>();
    /*%/async%*/
    /*%^async%*/
    const unsigned q_lane = start_q(q_tile, threadIdx.x);
    /*%/async%*/
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kStepsQK; ++i) load_q(q[i], q_lane, i);
    /*%/q_in_regs%*/

    /*%#one_stage%*/
    /*%#q_in_regs%*/
    __syncthreads();  // all warps have taken their Q
    /*%/q_in_regs%*/
    v_copy.start<true>(slots + kTileBytesK, n * kTileN, params.seqlen_k);
    /*%#async%*/
    cp_async_commit();
    /*%/async%*/
    /*%/one_stage%*/

    int stage = 0;
    // S for as many keys of tile n as there are scores, from the tile's key `first` on.
    const auto multiply = [&](auto& scores, int first) {
      /*%^async%*/
      // Computed anew in each step, as v_lane is: copies in flight take registers, and few are left.
      const unsigned k_lane = start_k(slots, thread_index());
      /*%^q_in_regs%*/
      const unsigned q_lane = start_q(q_tile, thread_index());
      /*%/q_in_regs%*/
      /*%/async%*/
#pragma unroll
      for (auto& row : scores) {
#pragma unroll
        for (float& score : row) score = 0;
      }
      const unsigned k_block = k_lane + stage * kSlotBytes + first * TileQK::kPitch;
#pragma unroll
      for (int i = 0; i < kStepsQK; ++i) {
        /*%#q_in_regs%*/
        multiply_qk(scores, q[i], k_block, i);
        /*%/q_in_regs%*/
        /*%^q_in_regs%*/
        unsigned q[kRowTiles][4];
        load_q(q, q_lane, i);
        multiply_qk(scores, q, k_block, i);
        /*%/q_in_regs%*/
      }
    };
    const auto mask = [&](auto& scores, int first) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
        visible.mask(scores[r], warp_row + 16 * r, n * kTileN + first, params);
    };
    // A step begins when its tile of K has arrived and no warp reads the previous step's tiles any more.
    const auto begin = [&] {
      /*%#async%*/
      /*%#one_stage%*/
      if (n == last) {
        cp_async_wait<1>();  // the first tile of V may still be under way
      } else {
        cp_async_wait<kPending>();
      }
      /*%/one_stage%*/
      /*%^one_stage%*/
      cp_async_wait<kPending>();
      /*%/one_stage%*/
      /*%/async%*/
      /*%^async%*/
      k_copy.finish();
      /*%/async%*/
      __syncthreads();
      /*%#one_stage%*/
      if (n != last) v_copy.start<false>(slots + kTileBytesK, n * kTileN, params.seqlen_k);
      /*%/one_stage%*/
      /*%^one_stage%*/
      const int next = n + 1 - kStages;  // the tile that takes the previous step's slot
      const unsigned next_slot = slots + (stage == 0 ? kStages - 1 : stage - 1) * kSlotBytes;
      /*%/one_stage%*/
      /*%#rings_apart%*/
      if (next >= 0) v_copy.start<false>(next_slot + kTileBytesK, next * kTileN, params.seqlen_k);
      /*%/rings_apart%*/
      /*%^kv_apart%*/
      if (next >= 0) {
        k_copy.start<false>(next_slot, next * kTileN, params.seqlen_k);
        v_copy.start<false>(next_slot + kTileBytesK, next * kTileN, params.seqlen_k);
      }
      /*%/kv_apart%*/
      /*%#async%*/
      cp_async_commit();
      /*%/async%*/
    };
    /*%#kv_apart%*/
    // A step's second half begins when V has arrived and no warp reads K any more.
    const auto turn_to_v = [&] {
      /*%#async%*/
      cp_async_wait<kPending>();
      /*%/async%*/
      /*%^async%*/
      v_copy.finish();
      /*%/async%*/
      __syncthreads();
      if (n >= kStages)
        k_copy.start<false>(slots + stage * kSlotBytes, (n - kStages) * kTileN, params.seqlen_k);
      /*%#async%*/
      cp_async_commit();
      /*%/async%*/
    };
    /*%/kv_apart%*/
    /*%#causal%*/
    // Whether the warp sees this key of a masked tile. If not, this key and all later ones are right of the
    // diagonal.
    const auto seen = [&](int key) {
      return n * kTileN + key < visible.by_first + warp_row + kRowsPerWarp - 1;
    };
    /*%/causal%*/
    /*%^causal%*/
    // Keys past the end are hidden from all warps alike: warps compute whole tiles, and the mask does the
    // rest.
    const auto seen = [](int) { return true; };
    /*%/causal%*/

    /*%#optimistic%*/
    // Most tiles take the short way: exponentials are computed with the shifts as they are, and no maximum is
    // taken. The sums, which are needed anyway, tell whether that was right; where it was not, the tile is
    // computed again the long way. Masked tiles, and the first one, which sets the shifts, only go the long
    // way.
#pragma unroll kUnroll
    for (; n >= 0; --n) {
      begin();
      const bool masked = n >= visible.unmasked_end;
      unsigned p[kBlockN / 16][kRowTiles][4];
      float sum[kRowTiles][2] = {};
      const auto exponentiate_all = [&](const float(&scores)[kRowTiles][kBlockN / 2]) {
#pragma unroll
        for (int i = 0; i < kBlockN / 16; ++i) {
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r)
            exponentiate(rows[r].shift, &scores[r][8 * i], p[i][r], sum[r], params.scale_log2);
        }
      };
      bool done = false;
      if (!masked && n != last) {
        float scores[kRowTiles][kBlockN / 2];
        multiply(scores, 0);
        exponentiate_all(scores);
        bool fits = true;
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) fits &= sum[r][0] <= kLargestSum && sum[r][1] <= kLargestSum;
        done = __all_sync(0xffffffffu, fits);
      }
      const bool wanted = !masked || seen(0);
      if (!done && wanted) {
        float scores[kRowTiles][kBlockN / 2];
        multiply(scores, 0);
        mask(scores, 0);
        raise(rows, output, scores, params.scale_log2);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) sum[r][0] = sum[r][1] = 0;
        exponentiate_all(scores);
      }
      /*%#kv_apart%*/
      turn_to_v();
      /*%/kv_apart%*/
      if (wanted) {
        /*%^async%*/
        const unsigned v_lane = start_v(slots + kTileBytesK, thread_index());
        /*%/async%*/
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          rows[r].sum[0] += sum[r][0];
          rows[r].sum[1] += sum[r][1];
        }
#pragma unroll
        for (int i = 0; i < kBlockN / 16; ++i)
          multiply_columns<TileV, kHeadDimV>(output, p[i], v_lane + stage * kSlotBytes, 16 * i);
      }
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    /*%/optimistic%*/
    /*%^optimistic%*/
    // Softmax of a block's scores, and O += P V.
    const auto accumulate = [&](const auto& scores, int first) {
      raise(rows, output, scores, params.scale_log2);
      /*%^async%*/
      const unsigned v_lane = start_v(slots + kTileBytesK, thread_index());
      /*%/async%*/
      add_pv(rows, output, scores, v_lane + stage * kSlotBytes + first * TileV::kPitch, params.scale_log2);
    };
    for (; n >= visible.unmasked_end; --n) {
      begin();
      /*%#kv_apart%*/
      float scores[kRowTiles][kBlockN / 2];
      if (seen(0)) multiply(scores, 0);
      turn_to_v();
      if (seen(0)) {
        mask(scores, 0);
        accumulate(scores, 0);
      }
      /*%/kv_apart%*/
      /*%^kv_apart%*/
      // A few keys at a time, up to the last one that is seen. The loop stays rolled: less to compile.
      constexpr int kMaskedN = kBlockN % 32 == 0 ? 32 : 16;
#pragma unroll 1
      for (int first = 0; first < kTileN && seen(first); first += kMaskedN) {
        float scores[kRowTiles][kMaskedN / 2];
        multiply(scores, first);
        mask(scores, first);
        accumulate(scores, first);
      }
      /*%/kv_apart%*/
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
#pragma unroll kUnroll
    for (; n >= 0; --n) {
      begin();
      /*%#kv_apart%*/
      float scores[kRowTiles][kBlockN / 2];
      multiply(scores, 0);
      turn_to_v();
      accumulate(scores, 0);
      /*%/kv_apart%*/
      /*%#at_once%*/
      float scores[kRowTiles][kBlockN / 2];
      multiply(scores, 0);
      accumulate(scores, 0);
      /*%/at_once%*/
      /*%#in_blocks%*/
      // The next block's S comes before this block's softmax, to keep the tensor cores busy.
      float scores[2][kRowTiles][kBlockN / 2];
      multiply(scores[0], 0);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        if (block + 1 < kBlocks) multiply(scores[(block + 1) % 2], (block + 1) * kBlockN);
        accumulate(scores[block % 2], block * kBlockN);
      }
      /*%/in_blocks%*/
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    /*%/optimistic%*/
  }

  // O takes the place of the tiles in the first slots once all warps have read them.
  __syncthreads();
  write_tile(params, tile_at(params, block_index()), rows, output, slots);
}
