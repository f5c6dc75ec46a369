// Two additions in global memory that return nothing (PTX ISA, "red"; vectors: sm_90 and later).
#pragma once

// Two neighbouring sums, aligned to 8 bytes; each is added atomically.
__device__ __forceinline__ void add_global(float* to, float first, float second) {
  /*%#red_pairs%*/
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(first), "f"(second) : "memory");
  /*%/red_pairs%*/
  /*%^red_pairs%*/
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(first) : "memory");
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to + 1), "f"(second) : "memory");
  /*%/red_pairs%*/
}
