// The fp32 sums of dQ, which lie in memory as wgmma's accumulators do (ptx/wgmma.cuh), and how they become
// dQ. A piece is what a warp has of eight columns of a product: 16 bytes a lane.
#pragma once
#include "params/backward.h"
#include "parts/anew.cuh"
#include "parts/divide.cuh"
#include "parts/wgmma_backward/panels.cuh"
#include "ptx/convert.cuh"
/*%#dq_transposed%*/
#include "ptx/movmatrix.cuh"
/*%/dq_transposed%*/

constexpr int kPieceFloats = 4 * 32;
// Rows that are converted together.
constexpr int kUnitRows = kTileM == 128 ? 64 : kTileM;
/*%^dq_transposed%*/
// A piece has 16 rows of eight columns. For every eight columns the pieces of 64 rows follow each other.
constexpr int kPieceRows = 16;
constexpr int kPiecesAcross = kHeadDim / 8;
constexpr int kRowsApart = kPieceFloats;
__device__ __forceinline__ constexpr int piece_offset(int across) {
  return across * 4 * kPieceFloats;
}
/*%/dq_transposed%*/
/*%#dq_transposed%*/
// Transposed, a piece has 16 columns of eight rows. For every eight rows the pieces of 64 columns follow each
// other; the other 64 columns come after all of a step's rows.
constexpr int kPieceRows = 8;
constexpr int kPiecesAcross = kHeadDim / 16;
constexpr int kRowsApart = 4 * kPieceFloats;
__device__ __forceinline__ constexpr int piece_offset(int across) {
  return (across / 4 * (kTileM / kPieceRows) * 4 + across % 4) * kPieceFloats;
}
/*%/dq_transposed%*/

// The sums of a head (counted over the batch), from a unit's first row on.
__device__ __forceinline__ const float* sums_of(int head, int row, const BackwardParams& p) {
  return p.dq_sum + (static_cast<long long>(head) * anew(p.padded_q) + row) * kHeadDim;
}

// Where a lane writes its part of the pieces of a unit, rows after rows.
struct DqRows {
  const BackwardParams& params;
  int row, end;         // this lane's first row; the end of the unit's or the head's rows
  unsigned short* low;  // its first columns there

  __device__ __forceinline__ DqRows(int head, int first_row, const BackwardParams& p) : params(p) {
    const int thread = anew(lane());
    const int batch = divide(head, p.by_heads);
    row = first_row + thread / 4;
    end = min(first_row + kUnitRows, p.seqlen_q);
    low = static_cast<unsigned short*>(p.dq) + batch * p.dq_batch +
          (head - batch * anew(p.heads)) * p.dq_head + row * p.dq_row + 2 * (thread % 4);
  }
  __device__ __forceinline__ void advance() {
    row += kPieceRows;
    low += kPieceRows * params.dq_row;
  }
  // For all lanes of the warp.
  __device__ __forceinline__ void write(int across, const float4& sum) const {
    const unsigned first = pack(sum.x * params.scale, sum.y * params.scale);
    const unsigned second = pack(sum.z * params.scale, sum.w * params.scale);
    /*%^dq_transposed%*/
    // The second pair belongs to the row that is 8 further down.
    if (row < end) *reinterpret_cast<unsigned*>(low + 8 * across) = first;
    if (row + 8 < end) *reinterpret_cast<unsigned*>(low + 8 * params.dq_row + 8 * across) = second;
    /*%/dq_transposed%*/
    /*%#dq_transposed%*/
    // Pairs of rows become pairs of columns; the second is eight columns further on.
    const unsigned left = movmatrix(first), right = movmatrix(second);
    if (row < end) {
      *reinterpret_cast<unsigned*>(low + 16 * across) = left;
      *reinterpret_cast<unsigned*>(low + 16 * across + 8) = right;
    }
    /*%/dq_transposed%*/
  }
};
