// The two matrix products of attention as outer products in registers.
#pragma once

#include "parts/simt_layout.cuh"

// A block of columns of a thread's rows of Q, or four (kHanded) weights of a thread's rows of P.
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

// Dims of Q and K that are summed apart before they meet what S has so far. A sum that grows over all of
// head_dim rounds at its full size each time, and what that does to a large score its weight shows: blocks of 8
// take the error down to a third (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2), for one
// addition in nine.
constexpr int kBlock = 8;

// S = Q K^T for kRows x kKeys of the tile. Four columns of Q and K cost kRows + kKeys 128-bit loads and
// 4 * kRows * kKeys FMAs. Rows are padded by 16 bytes, so that lanes on neighbouring rows meet no bank twice.
__device__ __forceinline__ void multiply_qk(float (&s)[kRows][kKeys], const float* q, const float* k,
                                            const Place& place) {
  q += place.row * kStrideQk;
  k += place.key_lane * kStrideQk;
  // What the additions to S have lost so far, if it is kept (Kahan's sum, Higham section 4.3).
  float lost[kRows][kKeys];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) s[i][j] = lost[i][j] = 0;
  }
  run_steps<kBlock, kHeadDim / kBlock>(
      [&](RowFragment<kBlock>& a, int step) { a.load(q + kBlock * step, kStrideQk); },
      [&](const RowFragment<kBlock>& a, int step) {
#pragma unroll
        for (int j = 0; j < kKeys; ++j) {
          float b[kBlock];
          load_floats<kBlock>(b, k + j * kLanes * kStrideQk + kBlock * step);
          float block[kRows];
#pragma unroll
          for (int i = 0; i < kRows; ++i) block[i] = a.at[i][0] * b[0];
#pragma unroll
          for (int x = 1; x < kBlock; ++x) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) block[i] = fmaf(a.at[i][x], b[x], block[i]);
          }
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
            if constexpr (kCareful) {
              const float term = block[i] - lost[i][j];
              const float sum = s[i][j] + term;
              lost[i][j] = (sum - s[i][j]) - term;
              s[i][j] = sum;
            } else {
              s[i][j] += block[i];
            }
          }
        }
      });
}

// Adds P V of kLanes * kHanded keys, whose weights lie in p. `v` is the first of these keys.
__device__ __forceinline__ void add_pv(float (&o)[kRows][kColumns], const float* p, const float* v,
                                       const Place& place) {
  run_steps<kHanded, kLanes>([&](RowFragment<kHanded>& a, int t) { a.load(p + t * kHanded, kStrideP); },
                             [&](const RowFragment<kHanded>& a, int t) {
#pragma unroll
                               for (int h = 0; h < kHanded; ++h) {
                                 const float* row = v + (h * kLanes + t) * kValueDim;
                                 float b[kColumns];
                                 for_each_group(place.key_lane, [&](auto group, int mine, int column) {
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
    const float* const keys = v + c * kHanded * kLanes * kValueDim;
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
