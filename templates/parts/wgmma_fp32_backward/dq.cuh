// dQ of a step, summed in the workspace.
#pragma once

#include "params/backward.h"
#include "parts/wgmma_fp32_backward/layout.cuh"
#include "parts/wgmma_fp32_backward/products.cuh"
#include "parts/wgmma_fp32_backward/steps.cuh"
#include "ptx/ldmatrix_transposed.cuh"
#include "ptx/pin.cuh"
#include "ptx/reduction_fragment.cuh"
#include "ptx/thread_index.cuh"
#include "ptx/wgmma.cuh"

// A warp's 16 rows of dS, from dS^T in shared memory.
__device__ __forceinline__ void load_ds(unsigned (&ds)[4][kParts][4], unsigned shared) {
  const int thread = thread_index() % 128, warp = thread / 32, lane = thread % 32;
  const int key = lane % 8 + lane / 16 * 8, row_chunk = 2 * warp + lane / 8 % 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned from = shared + kDs + TileDs::offset(16 * i + key, row_chunk);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      ldmatrix_transposed(ds[i][part], from + part * TileDs::kPartBytes);
  }
}

// Some columns of dQ += dS K. k_tile: from these columns on; to: the warp's sums of these columns.
template <int kColumns>
__device__ __forceinline__ void add_dq_columns(const unsigned (&ds)[4][kParts][4], unsigned k_tile,
                                               float* to) {
  float sum[kColumns / 2];
  wgmma_gradient(sum, ds, lower_half(k_tile));
  wgmma_wait<0>();
  pin(sum);
  to += thread_index() % 32 * kLaneSums;
#pragma unroll
  for (int i = 0; i < kColumns / 2; i += 4) add_fragment(to + 32 * i, &sum[i]);
}

// dQ += dS K for the step's rows.
__device__ __forceinline__ void add_dq(const unsigned (&ds)[4][kParts][4], unsigned shared, const Steps& step,
                                       const BackwardParams& params) {
  // The sums lie in blocks of 16 rows and 8 columns, one row of blocks after another.
  const int warp_row = thread_index() % 128 / 32 * 16;
  const long long row = static_cast<long long>(step.pair) * params.padded_q + step.m * kTileM + warp_row;
  float* to = params.dq_sum + row * kHeadDim;
  /*%#whole_qk%*/
  // Where the products stand in a loop, ptxas takes the same registers for their sums.
#pragma unroll 1
  for (int panel = 0; panel < kHeadDim / kPanelColumns; ++panel) {
    add_dq_columns<kPanelColumns>(ds, shared + kK + panel * TileQK::kPanelBytes, to);
    to += 16 * kPanelColumns;
  }
  /*%/whole_qk%*/
  /*%#last_qk%*/
  constexpr int kLastPanel = kHeadDim / kPanelColumns * TileQK::kPanelBytes;
  add_dq_columns<kHeadDim % kPanelColumns>(ds, shared + kK + kLastPanel, to);
  /*%/last_qk%*/
}
