// Replaces infinities by finite numbers (PTX ISA, "min", "max"; a NaN stays a NaN).
#pragma once

// Subtracting its first bf16 part from an infinity would give NaN, as it would from a number that rounds up
// to infinity: the largest bf16 takes their place.
__device__ __forceinline__ float finite(float x) {
  constexpr float kLargest = 0x1.fep127f;
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(kLargest));
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-kLargest));
  return x;
}
