// Scales the sums after a backward pass in fp32 that adds dQ up in memory. A CTA does kRows rows of one head.
#include "params/backward.h"
#include "parts/divide.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    FLASHJIT_ENTRY(const __grid_constant__ BackwardParams params) {
  // Neighbouring CTAs have the same rows of neighbouring heads, which often lie next to each other in dQ.
  const int block = static_cast<int>(blockIdx.x);
  const int rows_of_heads = divide(block, params.by_heads);
  const int head = block - rows_of_heads * params.heads;
  const int batch = divide(rows_of_heads, params.by_tiles);
  const int first_row = (rows_of_heads - batch * params.tiles) * kRows;
  const int rows = min(kRows, params.seqlen_q - first_row);
  const long long head_index = static_cast<long long>(batch) * params.heads + head;
  const float* const sum = params.dq_sum + (head_index * params.padded_q + first_row) * kHeadDim;
  float* const dq = static_cast<float*>(params.dq) + batch * params.dq_batch + head * params.dq_head +
                    first_row * params.dq_row;

  constexpr unsigned kChunks = kHeadDim / 4;  // of a row, 16 bytes each
#pragma unroll 4
  for (unsigned i = threadIdx.x; i < rows * kChunks; i += kThreads) {
    const int row = i / kChunks;
    float4 four = *reinterpret_cast<const float4*>(sum + i * 4);
    four.x *= params.scale, four.y *= params.scale, four.z *= params.scale, four.w *= params.scale;
    *reinterpret_cast<float4*>(dq + row * params.dq_row + i % kChunks * 4) = four;
  }
}
