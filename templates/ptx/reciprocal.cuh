// The fast reciprocal of fp32 (PTX ISA, "rcp"): one MUFU instruction; denormals flush to zero.
#pragma once

__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
