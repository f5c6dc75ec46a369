// A special register (PTX ISA, "%nctaid").
#pragma once

// CTAs of the grid, read again wherever the number is needed, as in ptx/block_index.cuh.
__device__ __forceinline__ int grid_size() {
  unsigned size;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(size));
  return static_cast<int>(size);
}
