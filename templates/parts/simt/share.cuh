// A thread's share of a tile of gradients.
#pragma once

#include "parts/simt/columns.cuh"
#include "parts/simt/layout.cuh"
/*%#red_vectors%*/
#include "ptx/reduction.cuh"
/*%/red_vectors%*/

// A share of the kTile rows x kDim columns that all threads of a CTA add up in registers; kSharers threads
// have a row together. A thread's rows are neighbours where they are read side by side. Where each is read
// along its own length, they are apart, so that neighbouring threads have no bank conflicts.
template <int kTile, int kDim, int kSharers, bool kNeighbours>
struct Share {
  static constexpr int kOwners = kThreads / kSharers;
  static constexpr int kOwn = kTile / kOwners;  // rows
  static constexpr int kColumns = kDim / kSharers;
  float at[kOwn][kColumns];

  __device__ __forceinline__ static int sharer() { return threadIdx.x % kSharers; }
  __device__ __forceinline__ static int row(int i) {
    const int owner = threadIdx.x / kSharers;
    return kNeighbours ? owner * kOwn + i : owner + i * kOwners;
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
#pragma unroll
      for (int x = 0; x < kColumns; ++x) at[i][x] = 0;
    }
  }

  // Adds tile by tile, so that additions round at the size of a tile's sum and not of the whole (Higham,
  // Accuracy and Stability of Numerical Algorithms, section 4.2).
  __device__ __forceinline__ void operator+=(const Share& tile) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
#pragma unroll
      for (int x = 0; x < kColumns; ++x) at[i][x] += tile.at[i][x];
    }
  }

  // Adds one row of the other factor, weighted for each of the thread's rows.
  template <class Weight>
  __device__ __forceinline__ void add(const float* row, Weight weight) {
    float b[kColumns];
    for_each_group<kColumns, kSharers>(sharer(), [&](auto group, int mine, int column) {
      load_floats<decltype(group)::kCount>(b + mine, row + column);
    });
#pragma unroll
    for (int x = 0; x < kColumns; ++x) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) at[i][x] = fmaf(weight(i), b[x], at[i][x]);
    }
  }

  /*%#dq%*/
  // Adds all rows to sums in memory, whatever order CTAs come in.
  __device__ __forceinline__ void add_to(float* sums, int row_stride) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      for_each_group<kColumns, kSharers>(sharer(), [&](auto group, int mine, int column) {
        float* const to = sums + row(i) * row_stride + column;
        const float* const own = at[i] + mine;
        /*%#red_vectors%*/
        if constexpr (decltype(group)::kCount == 4) {
          add_global(to, own[0], own[1], own[2], own[3]);
          return;
        }
        /*%/red_vectors%*/
#pragma unroll
        for (int x = 0; x < decltype(group)::kCount; ++x) atomicAdd(to + x, own[x]);
      });
    }
  }

  /*%/dq%*/
  // Writes the rows below rows_left to `to`, times factor.
  __device__ __forceinline__ void write(float* to, long long row_stride, int rows_left, float factor) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (row(i) >= rows_left) continue;
      for_each_group<kColumns, kSharers>(sharer(), [&](auto group, int mine, int column) {
        constexpr int kCount = decltype(group)::kCount;
        float value[kCount];
#pragma unroll
        for (int x = 0; x < kCount; ++x) value[x] = at[i][mine + x] * factor;
        store_floats<kCount>(to + row(i) * row_stride + column, value);
      });
    }
  }
};
