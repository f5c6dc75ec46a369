// Rounds fp32 to 16 bytes of a tensor's 16-bit elements.
#pragma once
#include "parts/vector.cuh"
#include "ptx/convert.cuh"

__device__ __forceinline__ uint4 narrow(const float (&from)[kVector]) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = pack(from[2 * i], from[2 * i + 1]);
  return uint4{words[0], words[1], words[2], words[3]};
}
