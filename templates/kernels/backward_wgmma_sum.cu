// The last kernel of a backward pass on Hopper whose dQ was added up: scales the fp32 sums and writes dQ. The
// sums lie as wgmma's accumulators do, in cells of 64 rows and up to 64 columns: for every eight columns,
// each of 128 threads has four (ptx/wgmma.cuh). A head's cells follow each other row of cells by row of
// cells.
#include "params/backward.h"
#include "ptx/convert.cuh"

constexpr int kPitch = kHeadDim / 2 + 4;  // pairs from one staged row to the next: no bank conflicts

extern "C" __global__ void __launch_bounds__(kThreads)
    FLASHJIT_ENTRY(const __grid_constant__ BackwardParams p) {
  __shared__ __align__(16) unsigned staged[64 * kPitch];
  // Neighbours have the same rows of neighbouring heads, which often lie next to each other in dQ.
  // The last heads first: their sums are in the L2 still.
  const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const int rows_of_heads = block / p.heads;
  const int head = block - rows_of_heads * p.heads;
  const int batch = rows_of_heads / p.tiles;
  const int first_row = 64 * (rows_of_heads - batch * p.tiles);
  const auto* sums = reinterpret_cast<const float4*>(
      p.dq_sum + ((static_cast<long long>(batch) * p.heads + head) * p.padded_q + first_row) * kHeadDim);
#pragma unroll
  for (int piece = static_cast<int>(threadIdx.x); piece < 64 * kHeadDim / 4; piece += kThreads) {
    const float4 four = __ldcs(sums + piece);
    const int thread = piece % 128;
    const int row = thread / 32 * 16 + thread % 32 / 4;
    const int pair = piece / 128 * 4 + thread % 4;
    staged[row * kPitch + pair] = pack(four.x * p.scale, four.y * p.scale);
    staged[(row + 8) * kPitch + pair] = pack(four.z * p.scale, four.w * p.scale);
  }
  __syncthreads();
  auto* dq = static_cast<unsigned short*>(p.dq) + batch * p.dq_batch + head * p.dq_head;
#pragma unroll
  for (int piece = static_cast<int>(threadIdx.x); piece < 64 * kHeadDim / 8; piece += kThreads) {
    const int row = piece / (kHeadDim / 8), column = piece % (kHeadDim / 8) * 8;
    if (first_row + row >= p.seqlen_q) break;
    *reinterpret_cast<uint4*>(dq + (first_row + row) * p.dq_row + column) =
        *reinterpret_cast<const uint4*>(staged + row * kPitch + column / 2);
  }
}
