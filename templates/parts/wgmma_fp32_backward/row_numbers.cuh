// LSE or delta of a thread's two rows of an accumulator.
#pragma once

#include "params/backward.h"
#include "parts/mma/backward_query_tile.cuh"
#include "parts/warpgroup.cuh"
#include "parts/wgmma_fp32_backward/row_parts.cuh"

// first: where those of the tile's rows begin, in RowParts.
__device__ __forceinline__ float2 row_numbers(const BackwardParams& params, const QueryTile& tile,
                                              int first) {
  const unsigned char* const rows = RowParts::of(params, tile.batch * params.heads + tile.head, tile.m);
  const float* const numbers =
      reinterpret_cast<const float*>(rows + first) + 16 * warp_of_warpgroup() + lane() / 4;
  return float2{numbers[0], numbers[8]};
}
