// Packed 16-bit elements to fp32 (PTX ISA, "cvt").
#pragma once

/*%#bf16%*/
__device__ __forceinline__ float low_half(unsigned pair) {
  return __uint_as_float(pair << 16);
}

__device__ __forceinline__ float high_half(unsigned pair) {
  return __uint_as_float(pair & 0xffff0000u);
}
/*%/bf16%*/
/*%#fp16%*/
__device__ __forceinline__ float low_half(unsigned pair) {
  float x;
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}" : "=f"(x) : "r"(pair));
  return x;
}

__device__ __forceinline__ float high_half(unsigned pair) {
  float x;
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high;}" : "=f"(x) : "r"(pair));
  return x;
}
/*%/fp16%*/
