// dV and dK where the queries of a tile of keys are shared out: CTAs add their shares to fp32 sums in device
// memory, which the warps that turn the sums of dQ into dQ turn into dV and dK (sums.cuh).
#pragma once
#include "params/backward.h"
#include "parts/anew.cuh"
#include "parts/divide.cuh"
#include "parts/warpgroup.cuh"
#include "parts/wgmma_backward/layout.cuh"
#include "parts/wgmma_backward/panels.cuh"
#include "parts/wgmma_backward/tiles.cuh"
#include "ptx/block_index.cuh"
#include "ptx/convert.cuh"
#include "ptx/grid_size.cuh"
#include "ptx/reduction.cuh"

constexpr int kWarpKeys = 16;  // which a warp has of a product, and converts together

// Sums lie as accumulators do (ptx/wgmma.cuh): for each kWarpKeys keys of a K/V head (counted over the batch)
// those of dV, then those of dK, with 16 bytes a lane, next to each other.
__device__ __forceinline__ float* key_sums_of(int head_kv, int key, const BackwardParams& p) {
  return p.key_sums + (head_kv * 1ll * (anew(p.tiles) * kTileKeys) + key) * (kHeadDimV + kHeadDim) +
         4 * anew(lane());
}

template <int kCount>
__device__ __forceinline__ void add_share(float* sums, const float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) add_global(sums + 32 * i, d[i], d[i + 1], d[i + 2], d[i + 3]);
}

// Writes a gradient of kWarpKeys keys, from `key` on, to the rows of `to`: sums, scaled, or zeros.
template <int kColumns, int kAtOnce, bool kSummed>
__device__ __forceinline__ void convert_rows(const float* sums, unsigned short* to, long long row_stride,
                                             int key, float scale, const BackwardParams& p) {
  const int thread = anew(lane()), row = key + thread / 4;
  to += row * row_stride + 2 * (thread % 4);
#pragma unroll
  for (int first = 0; first < kColumns / 8; first += kAtOnce) {
    const int behind = first + kAtOnce < kColumns / 8 ? first + kAtOnce : kColumns / 8;
    float4 sum[kAtOnce] = {};
    if (kSummed) {
#pragma unroll
      for (int i = first; i < behind; ++i) {
        sum[i - first] = __ldcg(reinterpret_cast<const float4*>(sums + 128 * i));
      }
    }
#pragma unroll
    for (int i = first; i < behind; ++i) {
      const float4& of = sum[i - first];
      if (row < p.seqlen_k) *reinterpret_cast<unsigned*>(to + 8 * i) = pack(of.x * scale, of.y * scale);
      if (row + 8 < p.seqlen_k) {
        *reinterpret_cast<unsigned*>(to + 8 * row_stride + 8 * i) = pack(of.z * scale, of.w * scale);
      }
    }
  }
}

// Turns the sums of kWarpKeys keys into their dV and dK; without kSummed, these become zero.
template <int kAtOnce, bool kSummed>
__device__ __forceinline__ void convert_keys(int head_kv, int key, const BackwardParams& p) {
  const int batch = divide(head_kv, p.by_heads_kv), head = head_kv - batch * anew(p.heads_kv);
  const float* const sums = key_sums_of(head_kv, key, p);
  convert_rows<kHeadDim, kAtOnce, kSummed>(
      sums + kWarpKeys * kHeadDimV,
      static_cast<unsigned short*>(p.dk) + batch * p.dk_batch + head * p.dk_head, p.dk_row, key, p.scale, p);
  head_kv = anew(head_kv);  // all is worked out again, as registers are few
  key = anew(key);
  const int batch_v = divide(head_kv, p.by_heads_kv), head_v = head_kv - batch_v * anew(p.heads_kv);
  convert_rows<kHeadDimV, kAtOnce, kSummed>(
      key_sums_of(head_kv, key, p),
      static_cast<unsigned short*>(p.dv) + batch_v * p.dv_batch + head_v * p.dv_head, p.dv_row, key, 1.0f, p);
}

__device__ __forceinline__ int key_units(const BackwardParams& p) {
  return (anew(p.seqlen_k) + kWarpKeys - 1) / kWarpKeys;
}

// For the consumers: without queries there are no sums, and the gradients are zero.
__device__ __forceinline__ void write_zeros(const BackwardParams& p) {
  const int units = key_units(p), heads = p.batch * p.heads_kv;
  const int warp = static_cast<int>(threadIdx.x) / 32 - (kThreads / 32 - kConsumerWarps);
  for (int unit = block_index() * kConsumerWarps + warp; unit < units * heads;
       unit += grid_size() * kConsumerWarps) {
    convert_keys<1, false>(unit / units, unit % units * kWarpKeys, p);
  }
}
