// The last kernel of a backward pass that adds dQ up in the layout of mma's accumulators: scales the sums,
// rounds them and puts them in order. A CTA does kRows rows of one head. Their sums lie in blocks of 16 rows
// and 8 columns, one row of blocks after another (ptx/reduction_fragment.cuh).
#include "params/backward.h"
#include "parts/divide.cuh"
/*%^fp32%*/
#include "parts/narrow.cuh"
/*%/fp32%*/

constexpr int kBlocks = kHeadDim / 8;  // side by side

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    FLASHJIT_ENTRY(const __grid_constant__ BackwardParams params) {
  const int block = static_cast<int>(blockIdx.x);
  const int head_index = divide(block, params.by_tiles);
  const int first_row = (block - head_index * params.tiles) * kRows;
  const int batch = divide(head_index, params.by_heads);
  const int head = head_index - batch * params.heads;
  const float4* const sums = reinterpret_cast<const float4*>(
      params.dq_sum + (static_cast<long long>(head_index) * params.padded_q + first_row) * kHeadDim);
  unsigned char* const dq = static_cast<unsigned char*>(params.dq) +
                            (batch * params.dq_batch + head * params.dq_head) * kElementBytes;

  // The accumulators of lanes 4 * quad … 4 * quad + 3: each has two columns of rows `quad` and `quad` + 8.
#pragma unroll 2
  for (int i = threadIdx.x; i < kRows / 2 * kBlocks; i += kThreads) {
    const int quad = i % 8, which = i / 8;  // of the blocks
    const float4* const from = sums + which * 32;
    float value[2][8];
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      /*%#red_vectors%*/
      const float4 four = from[quad * 4 + x];
      value[0][2 * x] = four.x * params.scale, value[0][2 * x + 1] = four.y * params.scale;
      value[1][2 * x] = four.z * params.scale, value[1][2 * x + 1] = four.w * params.scale;
      /*%/red_vectors%*/
      /*%^red_vectors%*/
      const float4 four = from[x * 8 + quad];
      value[x / 2][x % 2] = four.x * params.scale, value[x / 2][x % 2 + 2] = four.y * params.scale;
      value[x / 2][x % 2 + 4] = four.z * params.scale, value[x / 2][x % 2 + 6] = four.w * params.scale;
      /*%/red_vectors%*/
    }
    const int row = first_row + which / kBlocks * 16 + quad;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (row + 8 * half >= params.seqlen_q) continue;
      unsigned char* const to = dq + ((row + 8 * half) * params.dq_row + which % kBlocks * 8) * kElementBytes;
      /*%#fp32%*/
      const float(&v)[8] = value[half];
      reinterpret_cast<float4*>(to)[0] = float4{v[0], v[1], v[2], v[3]};
      reinterpret_cast<float4*>(to)[1] = float4{v[4], v[5], v[6], v[7]};
      /*%/fp32%*/
      /*%^fp32%*/
      *reinterpret_cast<uint4*>(to) = narrow(value[half]);
      /*%/fp32%*/
    }
  }
}
