// Counting in global memory, with order between those who count (PTX ISA, "atom").
#pragma once

// Adds, and returns what was there before. What this thread has seen written comes before the addition; what
// those had seen who added earlier is seen after it.
__device__ __forceinline__ int add_acquire_release(int* word, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(word), "r"(value)
               : "memory");
  return before;
}
