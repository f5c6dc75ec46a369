// The product, over the queries, that adds to a thread's share of the keys' gradients.
#pragma once

#include "parts/simt/layout.cuh"

// W^T X: W has kTileM rows, a column for each row of the share.
template <class ShareOfKeys, int kStride>
__device__ __forceinline__ ShareOfKeys multiply_transposed(const float* w, const float* x) {
  ShareOfKeys share;
  share.clear();
  w += ShareOfKeys::row(0);
#pragma unroll 4
  for (int m = 0; m < kTileM; ++m) {
    float a[ShareOfKeys::kOwn];
    load_floats<ShareOfKeys::kOwn>(a, w + m * kStrideP);
    share.add(x + m * kStride, [&](int i) { return a[i]; });
  }
  return share;
}
