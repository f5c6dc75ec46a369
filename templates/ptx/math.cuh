// Fast fp32 functions (PTX ISA, "ex2", "lg2", "rcp"): one MUFU instruction each; denormals flush to zero.
#pragma once

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/*%#lse%*/
constexpr float kLn2 = 0.693147180559945309f;
/*%/lse%*/
constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);
