// Which CTA this is (PTX ISA, "%ctaid").
#pragma once

// Read anew wherever it is needed: the asm keeps the compiler from holding it, and what is computed from it,
// in registers through the kernel's loop, where registers are short.
__device__ __forceinline__ int block_index() {
  unsigned index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  __builtin_assume(index < 0x7fffffffu);
  return index;
}
