// Order between CTAs through a word of global memory: who tells (PTX ISA, "red.release").
#pragma once

// What this thread has seen written, its own CTA's additions included, comes before the addition.
__device__ __forceinline__ void add_release(int* word, int value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
