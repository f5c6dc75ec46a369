// 16 bytes of a tensor's elements as fp32 (PTX ISA, "cvt").
#pragma once
#include "parts/vector.cuh"

__device__ __forceinline__ void widen(float (&to)[kVector], uint4 from) {
  const unsigned words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    /*%#fp32%*/
    to[i] = __uint_as_float(words[i]);
    /*%/fp32%*/
    /*%#bf16%*/
    to[2 * i] = __uint_as_float(words[i] << 16);
    to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    /*%/bf16%*/
    /*%#fp16%*/
    unsigned short low, high;
    asm("mov.b32 {%0, %1}, %2;" : "=h"(low), "=h"(high) : "r"(words[i]));
    asm("cvt.f32.f16 %0, %1;" : "=f"(to[2 * i]) : "h"(low));
    asm("cvt.f32.f16 %0, %1;" : "=f"(to[2 * i + 1]) : "h"(high));
    /*%/fp16%*/
  }
}
