// Products over whole tiles: chains of wgmma that a warpgroup issues and commits as one group.
#pragma once
#include "parts/wgmma_backward/panels.cuh"
#include "parts/wgmma_backward/products.cuh"
#include "ptx/pin.cuh"
#include "ptx/pin_fragment.cuh"
/*%^splits%*/
#include "ptx/stmatrix.cuh"
/*%/splits%*/
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_group.cuh"

// s = 64 rows of a tile times all rows of another, summed over kColumns columns of both; with kAdds, s +=
// that. kRowsA and kRowsB are the numbers of rows of their panels.
template <int kColumns, int kRowsA, int kRowsB, bool kAdds = false>
__device__ __forceinline__ void issue_scores(float (&s)[kScoreColumns / 2], unsigned rows, unsigned columns) {
  const unsigned long long a = wgmma_descriptor(rows, 0), b = wgmma_descriptor(columns, 0);
  if (kAdds) pin(s);
  wgmma_fence();
  if (!kAdds) wgmma_scores_first(s, a, b);
#pragma unroll
  for (int i = kAdds ? 0 : 1; i < (kColumns + 15) / 16; ++i) {
    wgmma_scores_next(s, a + column_step<kRowsA>(i), b + column_step<kRowsB>(i));
  }
  wgmma_commit();
}

// d += fragments a, 16 columns each, times the rows of a tile whose panels have kRows rows; only fragments
// kFirst to kEnd - 1. The columns of d take kParts products.
template <void (*kProduct)(float*, const unsigned*, unsigned long long), int kParts, int kRows, int kFirst,
          int kEnd, int kCount>
__device__ __forceinline__ void issue_gradient(float (&d)[kCount], unsigned (&a)[kRows / 4], unsigned tile) {
  constexpr int kPartBytes = (2 * kCount + 63) / 64 / kParts * kRows * kRowBytes;
  const unsigned long long b = wgmma_descriptor(tile, kRows * kRowBytes);
  if (kFirst == 0) pin(d);
  pin_some<4 * kFirst, 4 * kEnd>(a);
  wgmma_fence();
#pragma unroll
  for (int i = kFirst; i < kEnd; ++i) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      kProduct(d + part * (kCount / kParts), a + 4 * i, b + i * kSixteenRows + part * (kPartBytes / 16));
    }
  }
  wgmma_commit();
}

template <int kRows, int kFirst = 0, int kEnd = kRows / 16>
__device__ __forceinline__ void issue_gradient_qk(float (&d)[kHeadDim / 2], unsigned (&a)[kRows / 4],
                                                  unsigned tile) {
  issue_gradient<wgmma_gradient_qk, kPartsQk, kRows, kFirst, kEnd>(d, a, tile);
}
/*%#dv%*/
template <int kRows, int kFirst = 0, int kEnd = kRows / 16>
__device__ __forceinline__ void issue_gradient_v(float (&d)[kHeadDimV / 2], unsigned (&a)[kRows / 4],
                                                 unsigned tile) {
  issue_gradient<wgmma_gradient_v, kPartsV, kRows, kFirst, kEnd>(d, a, tile);
}
/*%/dv%*/

// Where accumulators begin as plain zeros, ptxas would wait for every product right away (its warning C7515):
// so they are pinned.
template <int kCount>
__device__ __forceinline__ void clear(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) d[i] = 0;
  pin(d);
}

/*%^splits%*/
// Stages accumulators, scaled, in 64 rows of a tile whose panels have kRows rows. `fragment` is the
// fragment_offset() of these rows.
template <int kRows, int kCount>
__device__ __forceinline__ void stage_gradient(const float (&d)[kCount], unsigned tile, unsigned fragment,
                                               float scale) {
#pragma unroll
  for (int i = 0; i < (kCount + 7) / 8; ++i) {
    stmatrix(tile + at_column_step<kRows>(fragment, i), scaled_pair(d, 8 * i, scale),
             scaled_pair(d, 8 * i + 2, scale), scaled_pair(d, 8 * i + 4, scale),
             scaled_pair(d, 8 * i + 6, scale));
  }
}
/*%/splits%*/
