// The two matrix products of attention as outer products in registers.
#pragma once

// S = Q K^T for kRows x kKeys of the tile. Four steps of the head dimension cost kRows + kKeys 128-bit loads
// and 4 * kRows * kKeys FMAs. Rows of Q and K are padded by 16 bytes, so that lanes on neighbouring rows meet
// no bank twice.
__device__ __forceinline__ void multiply_qk(float (&s)[kRows][kKeys], const float* q, const float* k,
                                            const Place& place) {
  q += place.row * kStrideQk;
  k += place.key_lane * kStrideQk;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) s[i][j] = 0;
  }
#pragma unroll kUnroll
  for (int x = 0; x < kHeadDim; x += 4) {
    float a[kRows][4];
#pragma unroll
    for (int i = 0; i < kRows; ++i) load_floats<4>(a[i], q + i * kRowLanes * kStrideQk + x);
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      float b[4];
      load_floats<4>(b, k + j * kLanes * kStrideQk + x);
#pragma unroll
      for (int y = 0; y < 4; ++y) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) s[i][j] = fmaf(a[i][y], b[y], s[i][j]);
      }
    }
  }
}

// O += P V. A warp hands its own rows of P over through shared memory, kHanded keys of each thread at a time:
// they lie side by side, so that each lane reads the weights of kHanded keys at once. Position kHanded * t +
// h of a row of P belongs to key (c * kHanded + h) * kLanes + t of the tile.
__device__ __forceinline__ void multiply_pv(float (&o)[kRows][kColumns], const float (&weights)[kRows][kKeys],
                                            float* p, const float* v, const Place& place) {
  p += place.row * kStrideP;
#pragma unroll
  for (int c = 0; c < kKeys / kHanded; ++c) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      store_floats<kHanded>(p + i * kRowLanes * kStrideP + place.key_lane * kHanded,
                            weights[i] + c * kHanded);
    }
    __syncwarp();
#pragma unroll kUnroll
    for (int t = 0; t < kLanes; ++t) {
      float a[kRows][kHanded];
#pragma unroll
      for (int i = 0; i < kRows; ++i) load_floats<kHanded>(a[i], p + i * kRowLanes * kStrideP + t * kHanded);
#pragma unroll
      for (int h = 0; h < kHanded; ++h) {
        const float* row = v + ((c * kHanded + h) * kLanes + t) * kValueDim;
        float b[kColumns];
        for_each_group(place.key_lane, [&]<int kCount>(int mine, int column) {
          load_floats<kCount>(b + mine, row + column);
        });
#pragma unroll
        for (int x = 0; x < kColumns; ++x) {
#pragma unroll
          for (int i = 0; i < kRows; ++i) o[i][x] = fmaf(a[i][h], b[x], o[i][x]);
        }
      }
    }
  }
}
