// Replaces infinities by finite numbers (PTX ISA, "min", "max"; a NaN stays a NaN).
#pragma once

// Subtracting its first bf16 part from an infinity would give NaN. So 2^119 takes the place of whatever is
// larger: its product with a number below 2^9 is finite, and so is that with every part but the first of a
// number of up to 2^17.
__device__ __forceinline__ float finite(float x) {
  constexpr float kLargest = 0x1p119f;
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(kLargest));
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-kLargest));
  return x;
}
