// Special registers (PTX ISA, "Special registers").
#pragma once

// Read anew wherever they are needed: the asm keeps the compiler from holding them, and what is computed from
// them, in registers through the kernel's loop, where registers are short.
__device__ __forceinline__ int block_index() {
  unsigned index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  __builtin_assume(index < 0x7fffffffu);
  return index;
}

__device__ __forceinline__ int thread_index() {
  unsigned index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  __builtin_assume(index < 1024u);
  return index;
}
