// The fast logarithm of fp32 (PTX ISA, "lg2"): one MUFU instruction; denormals flush to zero.
#pragma once

__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
