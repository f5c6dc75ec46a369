// FlashAttention-2 forward in fp32 FMA: a CTA owns kTileM queries of a head and streams its keys and values.
#include "params/forward.h"
#include "parts/divide.cuh"
#include "parts/simt/copy.cuh"
#include "parts/simt/layout.cuh"
#include "parts/simt/mask.cuh"
#include "parts/simt/product.cuh"
#include "parts/simt/softmax.cuh"
#include "parts/simt/tile_order.cuh"

// Copies the Q tile through registers and folds the softmax's scale into it. So S comes out in units of log2,
// and scores that equal the maximum weigh exactly 1. The rounding of Q is lost in the rounding of the sum
// over head_dim.
__device__ __forceinline__ void copy_q(float* to, const float* from, long long row_stride, int rows_left,
                                       float scale_log2) {
  constexpr unsigned kChunks = kHeadDim / 4;
  for (unsigned chunk = threadIdx.x; chunk < kTileM * kChunks; chunk += kThreads) {
    const int row = chunk / kChunks;
    const int column = chunk % kChunks * 4;
    float4 q{0, 0, 0, 0};
    if (row < rows_left) q = *reinterpret_cast<const float4*>(from + row * row_stride + column);
    *reinterpret_cast<float4*>(to + row * kStrideQk + column) =
        float4{q.x * scale_log2, q.y * scale_log2, q.z * scale_log2, q.w * scale_log2};
  }
}

// 8 or 16 dims are only one or two blocks, in which a large term rounds as often as in a single sum.
constexpr int kApart = kHeadDim <= 16 ? 2 : kBlock;

// What one CTA works on, and where its K and V come from and go to.
struct Job {
  int first_row;  // of the Q tile
  const float* k;
  const float* v;
  float* shared_q;
  float* shared_k;
  float* shared_v;
  float* shared_p;
};

// Starts the copy of K tile `tile` to shared memory.
template <bool kGuarded>
__device__ __forceinline__ void fetch_k(const ForwardParams& params, const Job& job, int tile) {
  const int key = tile * kTileN;
  copy_tile<kTileN, kHeadDim, kStrideQk, kGuarded>(job.shared_k, job.k + key * params.k_row, params.k_row,
                                                   params.seqlen_k - key);
  commit_tiles();
}

template <bool kGuarded>
__device__ __forceinline__ void fetch_v(const ForwardParams& params, const Job& job, int tile) {
  const int key = tile * kTileN;
  copy_tile<kTileN, kHeadDimV, kHeadDimV, kGuarded>(job.shared_v, job.v + key * params.v_row, params.v_row,
                                                    params.seqlen_k - key);
  commit_tiles();
}

// One tile of keys. On entry its K is in shared memory. With two buffers V is on its way, and each buffer is
// refilled as soon as all warps have read it; with one, K and V take turns in it.
template <bool kMasked>
__device__ __forceinline__ void step(const ForwardParams& params, const Job& job, const Place& place,
                                     Running& running, int tile) {
  // A warp whose rows see no key of the tile only takes part in the barriers.
  bool works = true;
  if constexpr (kMasked) {
    works = visible_keys(params, job.first_row + (place.warp + 1) * (kTileM / kWarps) - 1) > tile * kTileN;
  }
  float s[kRows][kKeys];
  if (works) multiply_rows<kHeadDim, kStrideQk, kApart>(s, job.shared_q, job.shared_k, place);
  if constexpr (kStages == 2) wait_for_tiles<0>();
  __syncthreads();
  if constexpr (kStages == 1) {
    fetch_v<kMasked>(params, job, tile);
  } else if (tile > 0) {
    fetch_k<false>(params, job, tile - 1);
  }
  if (works) {
    if constexpr (kMasked) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int keys =
            visible_keys(params, job.first_row + place.row + i * kRowLanes) - tile * kTileN - place.key_lane;
#pragma unroll
        for (int j = 0; j < kKeys; ++j) s[i][j] = j * kLanes < keys ? s[i][j] : -kInfinity;
      }
    }
    update_softmax(running, s);
  }
  if constexpr (kStages == 1) {
    wait_for_tiles<0>();
    __syncthreads();
  }
  if (works) multiply_pv(running.o, s, job.shared_p, job.shared_v, place);
  if constexpr (kStages == 1) {
    __syncthreads();
    if (tile > 0) fetch_k<false>(params, job, tile - 1);
  }
  wait_for_tiles<0>();
  __syncthreads();
  if constexpr (kStages == 2) {
    if (tile > 0) fetch_v<false>(params, job, tile - 1);
  }
}

// Divides by the sum of the weights and writes O and LSE.
__device__ __forceinline__ void finish(const ForwardParams& params, const Place& place, Running& running,
                                       int first_row,
                                       /*%#lse%*/
                                       float* lse,
                                       /*%/lse%*/
                                       float* o) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float sum = across_keys(running.sum[i], [](float a, float b) { return a + b; });
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;  // a row that saw no key gives 0
    const int row = first_row + place.row + i * kRowLanes;
    if (row >= params.seqlen_q) continue;
    float* out = o + row * params.o_row;
    for_each_group<kColumns, kLanes>(place.key_lane, [&](auto group, int mine, int column) {
      constexpr int kCount = decltype(group)::kCount;
      float value[kCount];
#pragma unroll
      for (int x = 0; x < kCount; ++x) value[x] = running.o[i][mine + x] * inverse;
      store_floats<kCount>(out + column, value);
    });
    /*%#lse%*/
    if (lse != nullptr && place.key_lane == 0) {
      lse[row] = sum == 0.0f ? -kInfinity : (running.maximum[i] + log2f(sum)) * kLn2;
    }
    /*%/lse%*/
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, kMinCtas)
    FLASHJIT_ENTRY(const __grid_constant__ ForwardParams params) {
  extern __shared__ float4 shared[];
  float* const memory = reinterpret_cast<float*>(shared);

  // All (batch, head) pairs are one section. Under a mask the last rows, which see most keys, come first.
  const auto [place_of_tile, pair, batch, head] = tile_of_block(
      params.tiles_m, params.by_tiles, params.section, params.by_section, params.heads, params.by_heads);
  const int tile_m = kCausal ? params.tiles_m - 1 - place_of_tile : place_of_tile;
  const int head_kv = divide(head, params.by_group);

  const Place place = place_of_thread();
  Job job;
  job.first_row = tile_m * kTileM;
  job.k = static_cast<const float*>(params.k) + batch * params.k_batch + head_kv * params.k_head;
  job.v = static_cast<const float*>(params.v) + batch * params.v_batch + head_kv * params.v_head;
  job.shared_q = memory;
  job.shared_k = memory + kSharedK;
  job.shared_v = memory + kSharedV;
  job.shared_p = memory + kSharedP;

  Running running;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    running.maximum[i] = -kInfinity;
    running.sum[i] = 0;
#pragma unroll
    for (int x = 0; x < kColumns; ++x) running.o[i][x] = 0;
  }

  // Goes backwards over the tiles that any row sees: masked tiles come first, and only the last tile of keys
  // may be ragged.
  const int last_row = min(job.first_row + kTileM, params.seqlen_q) - 1;
  int tile = (visible_keys(params, last_row) + kTileN - 1) / kTileN - 1;
  const int whole_tiles = visible_keys(params, job.first_row) / kTileN;  // that every row sees in full
  if (tile >= 0) {
    fetch_k<true>(params, job, tile);
    if constexpr (kStages == 2) fetch_v<true>(params, job, tile);
    copy_q(job.shared_q,
           static_cast<const float*>(params.q) + batch * params.q_batch + head * params.q_head +
               job.first_row * params.q_row,
           params.q_row, params.seqlen_q - job.first_row, params.scale_log2);
    wait_for_tiles<kStages - 1>();
    __syncthreads();
    for (; tile >= whole_tiles; --tile) step<true>(params, job, place, running, tile);
    for (; tile >= 0; --tile) step<false>(params, job, place, running, tile);
  }

  finish(params, place, running, job.first_row,
         /*%#lse%*/
         params.lse == nullptr ? nullptr : params.lse + static_cast<long long>(pair) * params.seqlen_q,
         /*%/lse%*/
         static_cast<float*>(params.o) + batch * params.o_batch + head * params.o_head);
}
