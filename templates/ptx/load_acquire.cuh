// Order between CTAs through a word of global memory: who waits (PTX ISA, "ld.acquire").
#pragma once

// What was written before the other side's release is seen after this.
__device__ __forceinline__ int load_acquire(const int* word) {
  int value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
