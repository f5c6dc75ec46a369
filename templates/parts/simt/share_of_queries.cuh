// The product, over the keys, that adds to a thread's share of the queries' gradients.
#pragma once

#include "parts/simt/layout.cuh"

// W X: W has a row for each row of the share, and kTileN columns.
template <class ShareOfRows, int kStride>
__device__ __forceinline__ ShareOfRows multiply(const float* w, const float* x) {
  ShareOfRows share;
  share.clear();
#pragma unroll 1
  for (int n = 0; n < kTileN; n += 4) {
    float a[ShareOfRows::kOwn][4];
#pragma unroll
    for (int i = 0; i < ShareOfRows::kOwn; ++i) load_floats<4>(a[i], w + ShareOfRows::row(i) * kStrideP + n);
#pragma unroll
    for (int h = 0; h < 4; ++h) share.add(x + (n + h) * kStride, [&](int i) { return a[i][h]; });
  }
  return share;
}
