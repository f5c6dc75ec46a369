// Order between CTAs through a word of global memory (PTX ISA, "ld.acquire", "red.release").
#pragma once

// What was written before the other side's release is seen after this.
__device__ __forceinline__ int load_acquire(const int* word) {
  int value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

// What this thread has seen written, its own CTA's additions included, comes before the addition.
__device__ __forceinline__ void add_release(int* word, int value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
