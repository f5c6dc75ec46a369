// Additions in global memory that return nothing (PTX ISA, "red"; vectors: sm_90 and later).
#pragma once

// Four neighbouring sums, aligned to 16 bytes; each is added atomically.
__device__ __forceinline__ void add_global(float* sums, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(sums), "f"(a), "f"(b),
               "f"(c), "f"(d)
               : "memory");
}
