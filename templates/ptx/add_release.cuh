// Order between CTAs through a word of global memory: the side that signals (PTX ISA, "red.release").
#pragma once

// All writes that this thread has seen, its own CTA's additions included, come before the addition.
__device__ __forceinline__ void add_release(int* word, int value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
