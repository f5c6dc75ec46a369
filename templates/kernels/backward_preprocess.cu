// Before the backward pass proper (FlashAttention-2, Dao, arXiv 2307.08691, algorithm 2, line 4): delta, the
// sum of dO * O of each query row, and the LSE in units of log2. A CTA does kRows rows of one head, up to the
// end of the padding.
#include "params/backward.h"
#include "parts/elements.cuh"

constexpr float kLog2e = 1.442695040888963407f;
constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);

// One row's part of the sum that falls to a lane, then the sum over the row's lanes, which all get it.
__device__ __forceinline__ float row_sum(const unsigned char* o, const unsigned char* dout, int lane,
                                         bool inside) {
  float sum = 0;
#pragma unroll
  for (int chunk = lane; chunk < kChunks; chunk += kLanes) {
    if (!inside) continue;
    float a[kVector], b[kVector];
    widen(a, *reinterpret_cast<const uint4*>(o + 16 * chunk));
    widen(b, *reinterpret_cast<const uint4*>(dout + 16 * chunk));
#pragma unroll
    for (int x = 0; x < kVector; ++x) sum = fmaf(a[x], b[x], sum);
  }
#pragma unroll
  for (int bit = kLanes / 2; bit > 0; bit /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, bit);
  return sum;
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    FLASHJIT_ENTRY(const __grid_constant__ BackwardParams params) {
  const int head_index = blockIdx.x / params.tiles;
  const int first_row = blockIdx.x % params.tiles * kRows;
  const int batch = head_index / params.heads;
  const int head = head_index % params.heads;
  const long long padded = static_cast<long long>(head_index) * params.padded_q + first_row;

  const int lane = threadIdx.x % kLanes;
  const unsigned char* o = static_cast<const unsigned char*>(params.o) +
                           (batch * params.o_batch + head * params.o_head) * kElementBytes;
  const unsigned char* dout = static_cast<const unsigned char*>(params.dout) +
                              (batch * params.dout_batch + head * params.dout_head) * kElementBytes;
#pragma unroll 4
  for (int step = 0; step < kRows; step += kThreads / kLanes) {
    const int in_tile = step + threadIdx.x / kLanes;
    const int row = first_row + in_tile;
    const bool inside = row < params.seqlen_q;
    const float delta = row_sum(o + row * params.o_row * kElementBytes,
                                dout + row * params.dout_row * kElementBytes, lane, inside);
    if (lane == 0) {
      float lse = -kInfinity;
      if (inside) lse = params.lse[static_cast<long long>(head_index) * params.seqlen_q + row];
      params.delta[padded + in_tile] = delta;
      // exp2(s - inf) is 0: a row that sees no key weighs nothing, whatever its scores.
      params.lse_log2[padded + in_tile] = lse == -kInfinity ? kInfinity : lse * kLog2e;
    }
  }
  /*%#clear%*/

  float4* const sum = reinterpret_cast<float4*>(params.dq_sum + padded * kHeadDim);
#pragma unroll 4
  for (int i = threadIdx.x; i < kRows * kHeadDim / 4; i += kThreads) sum[i] = float4{0, 0, 0, 0};
  /*%/clear%*/
  /*%#turns%*/
  if (threadIdx.x < kTurns) params.turns[padded / (kRows / kTurns) + threadIdx.x] = 0;
  /*%/turns%*/
  /*%#empty_rows%*/

  // Rows that see no key have no gradient. Nobody else comes to a tile of them.
  int rows = params.seqlen_k == 0 ? params.seqlen_q : 0;
  /*%#causal%*/
  rows = max(0, params.seqlen_q - params.seqlen_k);
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
