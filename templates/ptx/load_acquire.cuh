// Order between CTAs through a word of global memory: the side that waits (PTX ISA, "ld.acquire").
#pragma once

// All writes before the other side's release are visible after this load.
__device__ __forceinline__ int load_acquire(const int* word) {
  int value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
