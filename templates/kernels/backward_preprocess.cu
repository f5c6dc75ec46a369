// Before the backward pass proper (FlashAttention-2, Dao, arXiv 2307.08691, algorithm 2, line 4): delta, the
/*%#fp32%*/
// sum of dO * O of each query row. A CTA does kRows rows of one head, up to the end of the padding.
/*%/fp32%*/
/*%^fp32%*/
// sum of dO * O of each query row, and the LSE in units of log2. A CTA does kRows rows of one head, up to the
// end of the padding.
/*%/fp32%*/
#include "params/backward.h"
#include "parts/divide.cuh"
/*%#fp32%*/
#include "parts/simt/blocks.cuh"
/*%/fp32%*/
#include "parts/vector.cuh"
#include "parts/widen.cuh"
/*%^fp32%*/
#include "ptx/infinity.cuh"
/*%/fp32%*/

/*%^fp32%*/
constexpr float kLog2e = 1.442695040888963407f;

/*%/fp32%*/
constexpr int kSteps = kRows * kLanes / kThreads;      // rows of which a lane has a part
constexpr int kAtOnce = kSteps % 4 == 0 ? 4 : kSteps;  // rows whose loads are in flight together
static_assert(kSteps % kAtOnce == 0 && kRows <= kThreads);

// A lane's 16 bytes of a row; zeros where there are none.
__device__ __forceinline__ uint4 load_chunk(const unsigned char* from, bool inside) {
  return inside ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
}

// sum + x y, one dim after the other.
__device__ __forceinline__ float dot(const uint4& x, const uint4& y, float sum = 0) {
  float a[kVector], b[kVector];
  widen(a, x);
  widen(b, y);
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum = fmaf(a[i], b[i], sum);
  return sum;
}

extern "C" __global__ void __launch_bounds__(kThreads)
    FLASHJIT_ENTRY(const __grid_constant__ BackwardParams params) {
  // Neighbouring CTAs have the same rows of neighbouring heads, which often lie next to each other. The first
  // heads come last: the next kernel begins with them, and finds their rows in L2.
  const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const int rows_of_heads = divide(block, params.by_heads);
  const int head = block - rows_of_heads * params.heads;
  const int batch = divide(rows_of_heads, params.by_tiles);
  const int first_row = (rows_of_heads - batch * params.tiles) * kRows;
  const int head_index = batch * params.heads + head;
  const long long padded = static_cast<long long>(head_index) * params.padded_q + first_row;

  const int thread = static_cast<int>(threadIdx.x);
  /*%^fp32%*/
  float lse = -kInfinity;
  if (thread < min(kRows, params.seqlen_q - first_row)) {
    lse = params.lse[static_cast<long long>(head_index) * params.seqlen_q + first_row + thread];
  }

  /*%/fp32%*/
  const int lane = thread % kLanes;
  const unsigned char* o = static_cast<const unsigned char*>(params.o) +
                           (batch * params.o_batch + head * params.o_head) * kElementBytes;
  const unsigned char* dout = static_cast<const unsigned char*>(params.dout) +
                              (batch * params.dout_batch + head * params.dout_head) * kElementBytes;
#pragma unroll 1
  for (int step = 0; step < kSteps; step += kAtOnce) {
    float sum[kAtOnce] = {};
    /*%#fp32%*/
    // Adds in the order in which simt's kernels add up dP (multiply_rows of parts/simt/scores.cuh), with a
    // lane for each block. So where one key has all the weight and O is its V, delta equals dP to the last
    // bit and dS is 0.
    float part[kAtOnce], lost[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = first_row + ((step + i) * kThreads + thread) / kLanes;
      const bool inside = row < params.seqlen_q && 2 * lane < kChunks;
      const unsigned char* const of_o = o + row * params.o_row * kElementBytes + 32 * lane;
      const unsigned char* const of_dout = dout + row * params.dout_row * kElementBytes + 32 * lane;
      part[i] = dot(load_chunk(of_o, inside), load_chunk(of_dout, inside));
      part[i] = dot(load_chunk(of_o + 16, inside), load_chunk(of_dout + 16, inside), part[i]);
    }
#pragma unroll
    for (int from = 0; from < kChunks / 2; ++from) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        add_block(sum[i], lost[i], __shfl_sync(0xffffffffu, part[i], from, kLanes));
    }
    /*%/fp32%*/
    /*%^fp32%*/
    uint4 of_o[kAtOnce], of_dout[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = first_row + ((step + i) * kThreads + thread) / kLanes;
      const bool inside = row < params.seqlen_q && lane < kChunks;
      of_o[i] = load_chunk(o + row * params.o_row * kElementBytes + 16 * lane, inside);
      of_dout[i] = load_chunk(dout + row * params.dout_row * kElementBytes + 16 * lane, inside);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sum[i] += dot(of_o[i], of_dout[i]);
#pragma unroll
    for (int bit = kLanes / 2; bit > 0; bit /= 2) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], bit);
    }
    /*%/fp32%*/
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        params.delta[padded + ((step + i) * kThreads + thread) / kLanes] = sum[i];
      }
    }
  }
  /*%^fp32%*/
  // exp2(s - inf) is 0: P of a row that sees no key is 0, whatever its scores.
  if (thread < kRows) params.lse_log2[padded + thread] = lse == -kInfinity ? kInfinity : lse * kLog2e;
  /*%/fp32%*/
  /*%#clear%*/

  float4* const sum = reinterpret_cast<float4*>(params.dq_sum + padded * kHeadDim);
#pragma unroll 4
  for (int i = threadIdx.x; i < kRows * kHeadDim / 4; i += kThreads) sum[i] = float4{0, 0, 0, 0};
  /*%/clear%*/
  /*%#counters%*/
  if (threadIdx.x < kRows / kCounterRows) {
    params.counters[padded / kCounterRows + threadIdx.x] = 0;
  }
  /*%/counters%*/
  /*%#splits%*/

  // The sums of dV and dK, of which all CTAs clear a part.
  const long long keys =
      (params.seqlen_k + kTileKeys - 1) / kTileKeys * kTileKeys * (1ll * params.batch * params.heads_kv);
  float4* const key_sums = reinterpret_cast<float4*>(params.key_sums);
#pragma unroll 4
  for (long long i = 1ll * block * kThreads + thread; i < keys * kKeyColumns / 4;
       i += 1ll * gridDim.x * kThreads) {
    key_sums[i] = float4{0, 0, 0, 0};
  }
  /*%/splits%*/
  /*%#empty_rows%*/

  // The gradient of rows that see no key is zero. No other kernel writes tiles that have only such rows.
  /*%#causal%*/
  const int rows = max(0, params.seqlen_q - params.seqlen_k);
  /*%/causal%*/
  /*%^causal%*/
  const int rows = params.seqlen_k == 0 ? params.seqlen_q : 0;
  /*%/causal%*/
  constexpr int kDqChunks = kHeadDim * kElementBytes / 16;  // of a row
  unsigned char* dq = static_cast<unsigned char*>(params.dq) +
                      (batch * params.dq_batch + head * params.dq_head) * kElementBytes;
  for (int i = threadIdx.x; i < min(kRows, rows - first_row) * kDqChunks; i += kThreads) {
    const int row = first_row + i / kDqChunks;
    *reinterpret_cast<uint4*>(dq + row * params.dq_row * kElementBytes + i % kDqChunks * 16) =
        uint4{0, 0, 0, 0};
  }
  /*%/empty_rows%*/
}
