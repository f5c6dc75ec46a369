// O += P V as outer products in registers.
#pragma once

#include "parts/simt/columns.cuh"
#include "parts/simt/scores.cuh"

// Adds P V of kLanes * kHanded keys, whose weights lie in p. `v` is the first of these keys.
__device__ __forceinline__ void add_pv(float (&o)[kRows][kColumns], const float* p, const float* v,
                                       const Place& place) {
  run_steps<kHanded, kLanes>([&](RowFragment<kHanded>& a, int t) { a.load(p + t * kHanded, kStrideP); },
                             [&](const RowFragment<kHanded>& a, int t) {
#pragma unroll
                               for (int h = 0; h < kHanded; ++h) {
                                 const float* row = v + (h * kLanes + t) * kHeadDimV;
                                 float b[kColumns];
                                 for_each_group<kColumns, kLanes>(
                                     place.key_lane, [&](auto group, int mine, int column) {
                                       load_floats<decltype(group)::kCount>(b + mine, row + column);
                                     });
#pragma unroll
                                 for (int x = 0; x < kColumns; ++x) {
#pragma unroll
                                   for (int i = 0; i < kRows; ++i) o[i][x] = fmaf(a.at[i][h], b[x], o[i][x]);
                                 }
                               }
                             });
}

// O += P V. A warp passes its own rows of P through shared memory, kHanded keys of each thread at a time.
// These lie side by side, so that each lane reads the weights of kHanded keys at once. Position kHanded * t +
// h of a row of P belongs to key (c * kHanded + h) * kLanes + t of the tile. The CTA has synchronised since
// the last tile's P was read.
__device__ __forceinline__ void multiply_pv(float (&o)[kRows][kColumns], const float (&weights)[kRows][kKeys],
                                            float* p, const float* v, const Place& place) {
  p += place.row * kStrideP;
#pragma unroll
  for (int c = 0; c < kKeys / kHanded; ++c) {
    if (c > 0) __syncwarp();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      store_floats<kHanded>(p + i * kRowLanes * kStrideP + place.key_lane * kHanded,
                            weights[i] + c * kHanded);
    }
    __syncwarp();
    const float* const keys = v + c * kHanded * kLanes * kHeadDimV;
    if constexpr (kCareful) {
      float block[kRows][kColumns] = {};
      add_pv(block, p, keys, place);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int x = 0; x < kColumns; ++x) o[i][x] += block[i][x];
      }
    } else {
      add_pv(o, p, keys, place);
    }
  }
}
