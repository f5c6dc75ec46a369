// dK and dV in fp32 FMA (FlashAttention-2, Dao, arXiv 2307.08691, algorithm 2): a CTA owns kTileN keys of a
// K/V head and streams the queries of all its query heads.
#include "params/backward.h"
/*%#causal%*/
#include "parts/diagonal.cuh"
/*%/causal%*/
#include "parts/simt/copy.cuh"
#include "parts/simt/layout.cuh"
#include "parts/simt/mask.cuh"
#include "parts/simt/scores.cuh"
#include "parts/simt/share.cuh"
#include "parts/simt/share_of_keys.cuh"
/*%#dq%*/
#include "parts/simt/share_of_queries.cuh"
/*%/dq%*/
#include "parts/simt/tile_order.cuh"
#include "parts/simt/weights.cuh"

using ShareOfK = Share<kTileN, kHeadDim, kSharersK, true>;
using ShareOfV = Share<kTileN, kHeadDimV, kSharersV, true>;

// One query head, and the CTA's keys.
struct Job {
  const float* q;
  const float* dout;
  int head_index;  // among all batches' heads
  int first_key;
  float* memory;
};

// One tile of queries.
template <bool kMasked>
__device__ __forceinline__ void step(const BackwardParams& params, const Job& job, const Place& place,
                                     ShareOfK& dk, ShareOfV& dv, int tile) {
  float* const shared_q = job.memory + kSharedQ;
  float* const shared_dout = job.memory + kSharedDout;
  float* const shared_p = job.memory + kSharedP;
  float* const shared_ds = job.memory + kSharedDs;
  const int first_row = tile * kTileM;
  const int rows_left = params.seqlen_q - first_row;
  copy_tile<kTileM, kHeadDim, kStrideQk, true>(shared_q, job.q + first_row * params.q_row, params.q_row,
                                               rows_left);
  commit_tiles();
  copy_tile<kTileM, kHeadDimV, kStrideV, true>(shared_dout, job.dout + first_row * params.dout_row,
                                               params.dout_row, rows_left);
  commit_tiles();
  Rows rows;
  rows.load(params, job.head_index, first_row + place.row);
  wait_for_tiles<1>();  // K, V and Q are there
  __syncthreads();
  float p[kRows][kKeys];
  weigh<kMasked>(p, shared_q, job.memory + kSharedK, rows, params.scale, place, [&](int i) {
    return visible_keys(params, first_row + place.row + i * kRowLanes) - job.first_key - place.key_lane;
  });
  store_weights(shared_p, p, place);
  wait_for_tiles<0>();
  __syncthreads();
  float ds[kRows][kKeys];
  multiply_rows<kHeadDimV, kStrideV>(ds, shared_dout, job.memory + kSharedV, place);
  differentiate(ds, p, rows);
  store_weights(shared_ds, ds, place);
  __syncthreads();
  dv += multiply_transposed<ShareOfV, kStrideV>(shared_p, shared_dout);
  dk += multiply_transposed<ShareOfK, kStrideQk>(shared_ds, shared_q);
  /*%#dq%*/
  const auto dq =
      multiply<Share<kTileM, kHeadDim, kSharersQ, false>, kStrideQk>(shared_ds, job.memory + kSharedK);
  dq.add_to(params.dq_sum + (static_cast<long long>(job.head_index) * params.padded_q + first_row) * kHeadDim,
            kHeadDim);
  /*%/dq%*/
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    FLASHJIT_ENTRY(const __grid_constant__ BackwardParams params) {
  extern __shared__ float4 shared[];

  // Under a mask most queries see the first keys.
  const auto [tile_n, pair, batch, head_kv] =
      tile_of_block(params.tiles, params.by_tiles, params.batch * params.heads_kv, params.by_pairs,
                    params.heads_kv, params.by_heads_kv);

  Job job;
  job.first_key = tile_n * kTileN;
  job.memory = reinterpret_cast<float*>(shared);
  const int keys_left = params.seqlen_k - job.first_key;

  // Tiles of queries begin … masked_end - 1 need a mask, those from there on do not, those before see
  // nothing.
  const int tiles_m = (params.seqlen_q + kTileM - 1) / kTileM;
  int begin = 0;
  int masked_end = keys_left < kTileN ? tiles_m : 0;
  /*%#causal%*/
  const int first_seeing = job.first_key - diagonal(params);  // row, if it is one
  begin = min(max(first_seeing, 0) / kTileM, tiles_m);
  const int all_seeing = max(first_seeing + kTileN - 1, 0);
  masked_end = max(masked_end, min((all_seeing + kTileM - 1) / kTileM, tiles_m));
  /*%/causal%*/

  if (begin < tiles_m) {
    const float* const k = static_cast<const float*>(params.k) + batch * params.k_batch +
                           head_kv * params.k_head + job.first_key * params.k_row;
    const float* const v = static_cast<const float*>(params.v) + batch * params.v_batch +
                           head_kv * params.v_head + job.first_key * params.v_row;
    copy_tile<kTileN, kHeadDim, kStrideQk, true>(job.memory + kSharedK, k, params.k_row, keys_left);
    copy_tile<kTileN, kHeadDimV, kStrideV, true>(job.memory + kSharedV, v, params.v_row, keys_left);
  }

  const Place place = place_of_thread();
  ShareOfK dk;
  ShareOfV dv;
  dk.clear();
  dv.clear();
  for (int member = 0; member < params.group; ++member) {
    const int head = head_kv * params.group + member;
    job.head_index = batch * params.heads + head;
    job.q = static_cast<const float*>(params.q) + batch * params.q_batch + head * params.q_head;
    job.dout = static_cast<const float*>(params.dout) + batch * params.dout_batch + head * params.dout_head;
    int tile = begin;
    for (; tile < masked_end; ++tile) step<true>(params, job, place, dk, dv, tile);
    for (; tile < tiles_m; ++tile) step<false>(params, job, place, dk, dv, tile);
  }

  dk.write(static_cast<float*>(params.dk) + batch * params.dk_batch + head_kv * params.dk_head +
               job.first_key * params.dk_row,
           params.dk_row, keys_left, params.scale);
  dv.write(static_cast<float*>(params.dv) + batch * params.dv_batch + head_kv * params.dv_head +
               job.first_key * params.dv_row,
           params.dv_row, keys_left, 1.0f);
}
