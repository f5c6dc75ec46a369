// dK and dV in fp32 FMA (FlashAttention-2, Dao, arXiv 2307.08691, algorithm 2): a CTA owns kTileN keys of a
// K/V head and streams the queries of all its query heads.
#include "params/backward.h"
#include "parts/anew.cuh"
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

// A query head of the group, and the CTA's keys.
struct Job {
  int batch, head, heads_end;  // the group's heads end before heads_end
  int begin, end;              // tiles of queries that see a key
  int first_key;
  float* memory;
};

// The copies of a tile of a head's Q and dO, each a group of its own. Where the head begins is worked out
// here, so that no pointer waits in registers.
__device__ __forceinline__ void copy_q(const BackwardParams& params, const Job& job, int head, int tile) {
  const int first_row = tile * kTileM;
  const float* const q = static_cast<const float*>(params.q) + job.batch * params.q_batch +
                         head * params.q_head + first_row * params.q_row;
  copy_tile<kTileM, kHeadDim, kStrideQk, true>(job.memory + kSharedQ, q, params.q_row,
                                               params.seqlen_q - first_row);
  commit_tiles();
}
__device__ __forceinline__ void copy_dout(const BackwardParams& params, const Job& job, int head, int tile) {
  const int first_row = tile * kTileM;
  const float* const dout = static_cast<const float*>(params.dout) + job.batch * params.dout_batch +
                            head * params.dout_head + first_row * params.dout_row;
  copy_tile<kTileM, kHeadDimV, kStrideV, true>(job.memory + kSharedDout, dout, params.dout_row,
                                               params.seqlen_q - first_row);
  commit_tiles();
}

// One tile of queries. The next tile's Q and dO are on their way as soon as this tile's have been read for
// the last time, so that the products after that hide the latency.
template <bool kMasked>
__device__ __forceinline__ void step(const BackwardParams& params, const Job& job, const Place& place,
                                     ShareOfK& dk, ShareOfV& dv, int tile) {
  float* const shared_q = job.memory + kSharedQ;
  float* const shared_dout = job.memory + kSharedDout;
  float* const shared_p = job.memory + kSharedP;
  float* const shared_ds = job.memory + kSharedDs;
  const int first_row = tile * kTileM;
  const int head_index = job.batch * params.heads + job.head;  // among all batches' heads
  Rows rows;
  rows.load(params, head_index, first_row + place.row);
  wait_for_tiles<1>();  // K, V and Q have arrived
  __syncthreads();
  const int first_key = anew(job.first_key);
  float p[kRows][kKeys];
  weigh<kMasked>(p, shared_q, job.memory + kSharedK, rows, params.scale, place, [&](int i) {
    return visible_keys(params, first_row + place.row + i * kRowLanes) - first_key - place.key_lane;
  });
  store_weights(shared_p, p, place);
  wait_for_tiles<0>();
  __syncthreads();
  float ds[kRows][kKeys];
  multiply_rows<kHeadDimV, kStrideV>(ds, shared_dout, job.memory + kSharedV, place);
  differentiate(ds, p, rows);
  store_weights(shared_ds, ds, place);
  __syncthreads();
  // Starts a copy of the next tile: this head's, or the first one of the group's next head.
  const auto start_next = [&](auto copy) {
    int next = anew(tile + 1), head = job.head;
    if (next == job.end) next = job.begin, ++head;
    if (head < job.heads_end) copy(params, job, head, next);
  };
  dk += multiply_transposed<ShareOfK, kStrideQk>(shared_ds, shared_q);
  __syncthreads();
  start_next(copy_q);
  dv += multiply_transposed<ShareOfV, kStrideV>(shared_p, shared_dout);
  __syncthreads();
  start_next(copy_dout);
  /*%#dq%*/
  const auto dq =
      multiply<Share<kTileM, kHeadDim, kSharersQ, false>, kStrideQk>(shared_ds, job.memory + kSharedK);
  dq.add_to(params.dq_sum + (static_cast<long long>(head_index) * params.padded_q + first_row) * kHeadDim,
            kHeadDim);
  /*%/dq%*/
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    FLASHJIT_ENTRY(const __grid_constant__ BackwardParams params) {
  extern __shared__ float4 shared[];

  // Under a mask the first keys, which most queries see, come first.
  const auto [tile_n, pair, batch, head_kv] =
      tile_of_block(params.tiles, params.by_tiles, params.batch * params.heads_kv, params.by_pairs,
                    params.heads_kv, params.by_heads_kv);

  Job job;
  job.first_key = tile_n * kTileN;
  job.memory = reinterpret_cast<float*>(shared);
  const int keys_left = params.seqlen_k - job.first_key;

  // Tiles of queries begin … masked_end - 1 need a mask. Later tiles need none, and earlier ones see no key.
  job.begin = 0;
  job.end = (params.seqlen_q + kTileM - 1) / kTileM;
  int masked_end = keys_left < kTileN ? job.end : 0;
  /*%#causal%*/
  const int first_seeing = job.first_key - diagonal(params);  // the first row that sees a key, or negative
  job.begin = min(max(first_seeing, 0) / kTileM, job.end);
  const int all_seeing = max(first_seeing + kTileN - 1, 0);
  masked_end = max(masked_end, min((all_seeing + kTileM - 1) / kTileM, job.end));
  /*%/causal%*/

  const Place place = place_of_thread();
  ShareOfK dk;
  ShareOfV dv;
  dk.clear();
  dv.clear();
  if (job.begin < job.end) {
    const float* const k = static_cast<const float*>(params.k) + batch * params.k_batch +
                           head_kv * params.k_head + job.first_key * params.k_row;
    const float* const v = static_cast<const float*>(params.v) + batch * params.v_batch +
                           head_kv * params.v_head + job.first_key * params.v_row;
    copy_tile<kTileN, kHeadDim, kStrideQk, true>(job.memory + kSharedK, k, params.k_row, keys_left);
    copy_tile<kTileN, kHeadDimV, kStrideV, true>(job.memory + kSharedV, v, params.v_row, keys_left);
    job.batch = batch;
    job.head = head_kv * params.group;
    job.heads_end = job.head + params.group;
    copy_q(params, job, job.head, job.begin);
    copy_dout(params, job, job.head, job.begin);
    for (; job.head < job.heads_end; ++job.head) {
      int tile = job.begin;
      for (; tile < masked_end; ++tile) step<true>(params, job, place, dk, dv, tile);
      for (; tile < job.end; ++tile) step<false>(params, job, place, dk, dv, tile);
    }
  }

  dk.write(static_cast<float*>(params.dk) + batch * params.dk_batch + head_kv * params.dk_head +
               job.first_key * params.dk_row,
           params.dk_row, keys_left, params.scale);
  dv.write(static_cast<float*>(params.dv) + batch * params.dv_batch + head_kv * params.dv_head +
               job.first_key * params.dv_row,
           params.dv_row, keys_left, 1.0f);
}
