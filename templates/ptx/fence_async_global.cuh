// Order between ordinary accesses to global memory and those of the asynchronous proxy (PTX ISA,
// "membar/fence").
#pragma once

// What was written before is what is read after, in either direction.
__device__ __forceinline__ void fence_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
