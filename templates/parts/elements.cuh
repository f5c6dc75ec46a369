// 16 bytes of a tensor's elements as fp32, and back (PTX ISA, "cvt").
#pragma once

constexpr int kVector = 16 / kElementBytes;

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

__device__ __forceinline__ uint4 narrow(const float (&from)[kVector]) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    /*%#fp32%*/
    words[i] = __float_as_uint(from[i]);
    /*%/fp32%*/
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
