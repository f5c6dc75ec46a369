// Order between CTAs through the bits of a word of global memory: the side that waits (PTX ISA,
// "atom.acquire").
#pragma once

// Sets bits. Returns those before. All writes before a release that set one of them are visible after it.
__device__ __forceinline__ int or_acquire(int* word, int bits) {
  int before;
  asm volatile("atom.acquire.gpu.global.or.b32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(bits) : "memory");
  return before;
}
