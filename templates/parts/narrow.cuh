// fp32 as 16 bytes of a tensor's 16-bit elements (PTX ISA, "cvt").
#pragma once
#include "parts/vector.cuh"

__device__ __forceinline__ uint4 narrow(const float (&from)[kVector]) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    /*%#bf16%*/
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(words[i]) : "f"(from[2 * i + 1]), "f"(from[2 * i]));
    /*%/bf16%*/
    /*%#fp16%*/
    unsigned short low, high;  // one by one: conversions of pairs came with sm_80
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(low) : "f"(from[2 * i]));
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(high) : "f"(from[2 * i + 1]));
    asm("mov.b32 %0, {%1, %2};" : "=r"(words[i]) : "h"(low), "h"(high));
    /*%/fp16%*/
  }
  return uint4{words[0], words[1], words[2], words[3]};
}
