// A tile of query rows in parts, written by all threads of a CTA.
#pragma once

#include "params/backward.h"
#include "parts/mma/head_of_fp32.cuh"
#include "parts/mma/split_eight.cuh"
#include "parts/wgmma_fp32/rows.cuh"
#include "parts/wgmma_fp32_backward/row_parts.cuh"
#include "ptx/infinity.cuh"

// Rows and columns that do not exist become zeros, up to the end of the last panel.
template <class Tile, int kColumns>
__device__ __forceinline__ void split_rows(unsigned char* to, const Rows& rows) {
  constexpr int kChunks = (kColumns + 63) / 64 * 8;  // of 8 columns
  const auto as_it_is = [](float x) { return x; };
#pragma unroll 2
  for (int piece = threadIdx.x; piece < Tile::kRows * kChunks; piece += kThreads) {
    const int row = piece / kChunks, chunk = piece % kChunks;
    float4 numbers[2] = {};
    if (rows.have(row) && (kColumns % 64 == 0 || chunk * 8 < kColumns)) {
      const auto* const from = reinterpret_cast<const float4*>(rows.at(row, chunk * 8));
      numbers[0] = from[0];
      numbers[1] = from[1];
    }
    unsigned parts[4][kParts];
    split_eight(numbers, as_it_is, parts);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      *reinterpret_cast<uint4*>(to + Tile::offset(row, chunk) + part * Tile::kPartBytes) =
          uint4{parts[0][part], parts[1][part], parts[2][part], parts[3][part]};
    }
  }
}

// tile: of the head's padded rows, whose delta is in params.delta.
__device__ __forceinline__ void write_row_parts(const BackwardParams& params, int batch, int head, int tile) {
  const int pair = batch * params.heads + head, first_row = tile * RowParts::kRows;
  unsigned char* const to = RowParts::of(params, pair, tile);
  const float* const q = head_of(params.q, batch * params.q_batch, head * params.q_head);
  const float* const dout = head_of(params.dout, batch * params.dout_batch, head * params.dout_head);
  split_rows<TileV, kHeadDimV>(to + RowParts::kDout, {dout, params.dout_row, first_row, params.seqlen_q});
  split_rows<TileQK, kHeadDim>(to + RowParts::kQ, {q, params.q_row, first_row, params.seqlen_q});
  const int thread = threadIdx.x, row = first_row + thread;
  if (thread >= RowParts::kRows) return;
  // An LSE of +inf makes P 0: for rows past the last, and for those that see no key, or none whose score is
  // above -inf.
  float lse = kInfinity;
  if (row < params.seqlen_q) lse = params.lse[static_cast<long long>(pair) * params.seqlen_q + row];
  reinterpret_cast<float*>(to + RowParts::kLse)[thread] = lse == -kInfinity ? kInfinity : lse;
  reinterpret_cast<float*>(to + RowParts::kDelta)[thread] =
      params.delta[static_cast<long long>(pair) * params.padded_q + row];
}
