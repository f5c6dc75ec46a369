// P on its way from one warpgroup to the other. A thread takes what the thread of the same number has put
// there: both have the same rows and keys.
#pragma once

#include "ptx/shared_four.cuh"
#include "ptx/store_shared_16.cuh"
#include "ptx/thread_index.cuh"

constexpr int kPBytes = 64 * 64 * sizeof(float);  // P is not split

// Of a thread's numbers, four from the i-th on.
__device__ __forceinline__ unsigned address_of_weights(unsigned place, int i) {
  return place + thread_index() % 128 * 16 + i * 512;
}

__device__ __forceinline__ void store_weights(unsigned place, const float (&p)[32]) {
#pragma unroll
  for (int i = 0; i < 32; i += 4) {
    store_shared(address_of_weights(place, i), uint4{__float_as_uint(p[i]), __float_as_uint(p[i + 1]),
                                                     __float_as_uint(p[i + 2]), __float_as_uint(p[i + 3])});
  }
}

__device__ __forceinline__ float4 load_weights(unsigned place, int i) {
  return load_four(address_of_weights(place, i));
}
