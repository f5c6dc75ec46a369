// The lane's number in its warp (PTX ISA, "Special registers").
#pragma once

// Read again at each use, as in ptx/thread_index.cuh: where registers are short, one less is held.
__device__ __forceinline__ int lane_index() {
  unsigned index;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(index));
  __builtin_assume(index < 32u);
  return index;
}
