// The two matrix products of attention as outer products in registers.
#pragma once

#include "parts/simt_layout.cuh"

// Four columns of a thread's rows of Q, or four (kHanded) weights of a thread's rows of P.
template <int kCount>
struct RowFragment {
  float at[kRows][kCount];

  __device__ __forceinline__ void load(const float* from, int row_stride) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) load_floats<kCount>(at[i], from + i * kRowLanes * row_stride);
  }
};

// Runs kSteps steps, each of which first loads a RowFragment and then computes with it. With kPrefetch the
// fragment of the next step is on its way while this one is computed: it takes registers, and hides the
// latency of shared memory.
template <int kCount, int kSteps, class Load, class Compute>
__device__ __forceinline__ void run_steps(Load load, Compute compute) {
  if constexpr (kPrefetch && kSteps % 2 == 0) {
    RowFragment<kCount> even, odd;
    load(even, 0);
#pragma unroll kUnroll
    for (int step = 0; step < kSteps; step += 2) {
      load(odd, step + 1);
      compute(even, step);
      load(even, step + 2 < kSteps ? step + 2 : 0);  // after the last step: loaded for nothing, but no branch
      compute(odd, step + 1);
    }
  } else {
#pragma unroll kUnroll
    for (int step = 0; step < kSteps; ++step) {
      RowFragment<kCount> fragment;
      load(fragment, step);
      compute(fragment, step);
    }
  }
}

// S = Q K^T for kRows x kKeys of the tile. Four columns of Q and K cost kRows + kKeys 128-bit loads and
// 4 * kRows * kKeys FMAs. Rows are padded by 16 bytes, so that lanes on neighbouring rows meet no bank twice.
__device__ __forceinline__ void multiply_qk(float (&s)[kRows][kKeys], const float* q, const float* k,
                                            const Place& place) {
  q += place.row * kStrideQk;
  k += place.key_lane * kStrideQk;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) s[i][j] = 0;
  }
  run_steps<4, kHeadDim / 4>([&](RowFragment<4>& a, int step) { a.load(q + 4 * step, kStrideQk); },
                             [&](const RowFragment<4>& a, int step) {
#pragma unroll
                               for (int j = 0; j < kKeys; ++j) {
                                 float b[4];
                                 load_floats<4>(b, k + j * kLanes * kStrideQk + 4 * step);
#pragma unroll
                                 for (int x = 0; x < 4; ++x) {
#pragma unroll
                                   for (int i = 0; i < kRows; ++i) s[i][j] = fmaf(a.at[i][x], b[x], s[i][j]);
                                 }
                               }
                             });
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
    run_steps<kHanded, kLanes>([&](RowFragment<kHanded>& a, int t) { a.load(p + t * kHanded, kStrideP); },
                               [&](const RowFragment<kHanded>& a, int t) {
#pragma unroll
                                 for (int h = 0; h < kHanded; ++h) {
                                   const float* row = v + ((c * kHanded + h) * kLanes + t) * kValueDim;
                                   float b[kColumns];
                                   for_each_group(place.key_lane, [&](auto group, int mine, int column) {
                                     load_floats<decltype(group)::kCount>(b + mine, row + column);
                                   });
#pragma unroll
                                   for (int x = 0; x < kColumns; ++x) {
#pragma unroll
                                     for (int i = 0; i < kRows; ++i)
                                       o[i][x] = fmaf(a.at[i][h], b[x], o[i][x]);
                                   }
                                 }
                               });
  }
}
