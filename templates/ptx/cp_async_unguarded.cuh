// Asynchronous copies from global to shared memory, of what is known to be there (PTX ISA, "cp.async").
#pragma once

// Copies 16 bytes, bypassing L1.
__device__ __forceinline__ void cp_async_16(unsigned shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
