// Which thread of the CTA this is (PTX ISA, "%tid").
#pragma once

// Read anew wherever it is needed: the asm keeps the compiler from holding it, and what is computed from it,
// in registers through the kernel's loop, where registers are short.
__device__ __forceinline__ int thread_index() {
  unsigned index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  __builtin_assume(index < 1024u);
  return index;
}
