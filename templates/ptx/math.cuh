// The fast exponential of fp32 (PTX ISA, "ex2"): one MUFU instruction; denormals flush to zero.
#pragma once

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/*%#lse%*/
constexpr float kLn2 = 0.693147180559945309f;
/*%/lse%*/
