// Infinities as numbers (PTX ISA, "min", "max"; a NaN stays one).
#pragma once

// An infinity would leave NaN when its first bf16 part is taken from it, and so would what rounds up to one:
// the largest bf16 has their place.
__device__ __forceinline__ float finite(float x) {
  constexpr float kLargest = 0x1.fep127f;
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(kLargest));
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-kLargest));
  return x;
}
