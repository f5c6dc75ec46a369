// dQ in fp32 FMA: a CTA owns kTileM queries of a head and streams the keys and values that they see. S and dP
// are computed again, at the cost of two products of seven, so that nothing is added across CTAs.
#include "params/backward.h"
#include "parts/divide.cuh"
#include "parts/simt/copy.cuh"
#include "parts/simt/layout.cuh"
#include "parts/simt/mask.cuh"
#include "parts/simt/scores.cuh"
#include "parts/simt/share.cuh"
#include "parts/simt/share_of_queries.cuh"
#include "parts/simt/tile_order.cuh"
#include "parts/simt/weights.cuh"

using ShareOfQ = Share<kTileM, kHeadDim, kSharersQ, false>;

// The head's K and V, and the CTA's queries.
struct Job {
  const float* k;
  const float* v;
  int first_row;
  int end;  // of the tiles of keys that a query sees
  float* memory;
};

__device__ __forceinline__ void copy_k(const BackwardParams& params, const Job& job, int tile) {
  const int first_key = tile * kTileN;
  copy_tile<kTileN, kHeadDim, kStrideQk, true>(job.memory + kSharedK, job.k + first_key * params.k_row,
                                               params.k_row, params.seqlen_k - first_key);
}
__device__ __forceinline__ void copy_v(const BackwardParams& params, const Job& job, int tile) {
  const int first_key = tile * kTileN;
  copy_tile<kTileN, kHeadDimV, kStrideV, true>(job.memory + kSharedV, job.v + first_key * params.v_row,
                                               params.v_row, params.seqlen_k - first_key);
}

// One tile of keys. The next tile's V is on its way beside dQ's product, its K right after.
template <bool kMasked>
__device__ __forceinline__ void step(const BackwardParams& params, const Job& job, const Rows& rows,
                                     const Place& place, ShareOfQ& dq, int tile) {
  float* const shared_k = job.memory + kSharedK;
  float* const shared_v = job.memory + kSharedV;
  float* const shared_ds = job.memory + kSharedDs;
  const int first_key = tile * kTileN;
  wait_for_tiles<0>();
  __syncthreads();
  float p[kRows][kKeys];
  weigh<kMasked>(p, job.memory + kSharedQ, shared_k, rows, params.scale, place, [&](int i) {
    return visible_keys(params, job.first_row + place.row + i * kRowLanes) - first_key - place.key_lane;
  });
  float ds[kRows][kKeys];
  multiply_rows<kHeadDimV, kStrideV>(ds, job.memory + kSharedDout, shared_v, place);
  differentiate(ds, p, rows);
  store_weights(shared_ds, ds, place);
  __syncthreads();
  const bool more = tile + 1 < job.end;
  if (more) copy_v(params, job, tile + 1);
  dq += multiply<ShareOfQ, kStrideQk>(shared_ds, shared_k);
  __syncthreads();
  if (more) copy_k(params, job, tile + 1);
  commit_tiles();
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    FLASHJIT_ENTRY(const __grid_constant__ BackwardParams params) {
  extern __shared__ float4 shared[];

  // Under a mask the last rows, which see most keys, come first.
  const auto [place_of_tile, pair, batch, head] =
      tile_of_block(params.tiles, params.by_tiles, params.batch * params.heads, params.by_pairs, params.heads,
                    params.by_heads);
  const int tile_m = kCausal ? params.tiles - 1 - place_of_tile : place_of_tile;
  const int head_kv = divide(head, params.by_group);

  Job job;
  job.first_row = tile_m * kTileM;
  job.k = static_cast<const float*>(params.k) + batch * params.k_batch + head_kv * params.k_head;
  job.v = static_cast<const float*>(params.v) + batch * params.v_batch + head_kv * params.v_head;
  job.memory = reinterpret_cast<float*>(shared);
  const int rows_left = params.seqlen_q - job.first_row;

  const Place place = place_of_thread();
  ShareOfQ dq;
  dq.clear();
  // Every row sees the first tiles in full; the last ones need a mask.
  const int whole_tiles = visible_keys(params, job.first_row) / kTileN;
  const int last_row = min(job.first_row + kTileM, params.seqlen_q) - 1;
  job.end = (visible_keys(params, last_row) + kTileN - 1) / kTileN;
  if (job.end > 0) {
    copy_tile<kTileM, kHeadDim, kStrideQk, true>(job.memory + kSharedQ,
                                                 static_cast<const float*>(params.q) +
                                                     batch * params.q_batch + head * params.q_head +
                                                     job.first_row * params.q_row,
                                                 params.q_row, rows_left);
    copy_tile<kTileM, kHeadDimV, kStrideV, true>(job.memory + kSharedDout,
                                                 static_cast<const float*>(params.dout) +
                                                     batch * params.dout_batch + head * params.dout_head +
                                                     job.first_row * params.dout_row,
                                                 params.dout_row, rows_left);
    copy_k(params, job, 0);
    copy_v(params, job, 0);
    commit_tiles();
    Rows rows;
    rows.load(params, pair, job.first_row + place.row);
    int tile = 0;
    for (; tile < whole_tiles; ++tile) step<false>(params, job, rows, place, dq, tile);
    for (; tile < job.end; ++tile) step<true>(params, job, rows, place, dq, tile);
  }
  dq.write(static_cast<float*>(params.dq) + batch * params.dq_batch + head * params.dq_head +
               job.first_row * params.dq_row,
           params.dq_row, rows_left, params.scale);
}
