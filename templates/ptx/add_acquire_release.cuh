// Counting in global memory, with memory order between the threads that count (PTX ISA, "atom").
#pragma once

// Adds, and returns the value before. All writes that this thread has seen come before the addition; all
// writes that earlier adders had seen are visible after it.
__device__ __forceinline__ int add_acquire_release(int* word, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(word), "r"(value)
               : "memory");
  return before;
}
