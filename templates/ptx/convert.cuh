// Pairs of fp32 to packed 16-bit elements (PTX ISA, "cvt").
#pragma once

// low goes to bits 0-15.
__device__ __forceinline__ unsigned pack(float low, float high) {
  unsigned pair;
  /*%#cvt_pairs%*/
  /*%#bf16%*/
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  /*%/bf16%*/
  /*%#fp16%*/
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  /*%/fp16%*/
  /*%/cvt_pairs%*/
  /*%^cvt_pairs%*/
  unsigned short first, second;  // conversions of pairs came with sm_80
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(first) : "f"(low));
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(second) : "f"(high));
  asm("mov.b32 %0, {%1, %2};" : "=r"(pair) : "h"(first), "h"(second));
  /*%/cvt_pairs%*/
  return pair;
}
