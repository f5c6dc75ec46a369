// Before the backward pass in fp32 on tensor cores (FlashAttention-2, Dao, arXiv 2307.08691, algorithm 2,
// line 4): delta, the sum of dO * O of each query row. A CTA does kRows rows of one head, up to the end of
// the padding.
/*%#row_parts%*/
// And it splits the rows of Q and dO into their parts, for the kernel that has them copied.
/*%/row_parts%*/
#include "params/backward.h"
#include "parts/divide.cuh"
#include "parts/mma/split_sum.cuh"
/*%#row_parts%*/
#include "parts/wgmma_fp32_backward/split_rows.cuh"
/*%/row_parts%*/

// A thread's part of a fragment of 16 rows and 16 columns, in parts; rows from `end` on are zeros.
__device__ __forceinline__ void load_fragment(unsigned (&fragment)[kParts][4], const float* from,
                                              long long row_stride, int first_row, int end, int column) {
  const int lane = threadIdx.x % 32;
  float numbers[8] = {};
#pragma unroll
  for (int x = 0; x < 4; ++x) {
    const int row = first_row + x % 2 * 8 + lane / 4, of = column + x / 2 * 8 + lane % 4 * 2;
    if (row < end && (kHeadDimV % 16 == 0 || of < kHeadDimV)) {
      const float2 two = *reinterpret_cast<const float2*>(from + row * row_stride + of);
      numbers[2 * x] = two.x, numbers[2 * x + 1] = two.y;
    }
  }
  split_fragment(fragment, numbers);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    FLASHJIT_ENTRY(const __grid_constant__ BackwardParams params) {
  // Neighbouring CTAs have the same rows of neighbouring heads, which often lie next to each other.
  const int block = static_cast<int>(blockIdx.x);
  const int rows_of_heads = divide(block, params.by_heads);
  const int head = block - rows_of_heads * params.heads;
  const int batch = divide(rows_of_heads, params.by_tiles);
  const int first_row = (rows_of_heads - batch * params.tiles) * kRows;
  const long long padded =
      (static_cast<long long>(batch) * params.heads + head) * params.padded_q + first_row;

  // The diagonal of O dO^T, by the instructions that make V dO^T in the next kernel, in the same order. So
  // where one key has all the weight and O is its V, delta equals dP to the last bit and dS is 0.
  const float* const o = static_cast<const float*>(params.o) + batch * params.o_batch + head * params.o_head;
  const float* const dout =
      static_cast<const float*>(params.dout) + batch * params.dout_batch + head * params.dout_head;
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16;
  SplitSum<8> sum;
#pragma unroll 2
  for (int column = 0; column < kHeadDimV; column += 16) {
    unsigned of_o[kParts][4], of_dout[kParts][4];
    load_fragment(of_o, o, params.o_row, first_row + warp_row, params.seqlen_q, column);
    load_fragment(of_dout, dout, params.dout_row, first_row + warp_row, params.seqlen_q, column);
    // B's fragments are counted columns first.
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const unsigned other = of_dout[part][1];
      of_dout[part][1] = of_dout[part][2];
      of_dout[part][2] = other;
    }
    sum.multiply_apart(0, of_o, of_dout);
  }
  // Row g of the upper eight rows and of the lower ones is on the diagonal in lane 4 g + g / 2.
  const int row = lane / 4;
  if (lane % 4 == row / 2) {
    params.delta[padded + warp_row + row] = row % 2 == 0 ? sum.at(0) : sum.at(1);
    params.delta[padded + warp_row + row + 8] = row % 2 == 0 ? sum.at(6) : sum.at(7);
  }
  /*%#row_parts%*/

  __syncthreads();  // delta is there
#pragma unroll 1
  for (int tile = 0; tile < kRows / RowParts::kRows; ++tile)
    write_row_parts(params, batch, head, first_row / RowParts::kRows + tile);
  /*%/row_parts%*/
  /*%#clear%*/

  float4* const dq = reinterpret_cast<float4*>(params.dq_sum + padded * kHeadDim);
#pragma unroll 4
  for (int i = threadIdx.x; i < kRows * kHeadDim / 4; i += kThreads) dq[i] = float4{0, 0, 0, 0};
  /*%/clear%*/
}
