// Order between ordinary accesses to global memory and those of the asynchronous proxy (PTX ISA,
// "membar/fence").
#pragma once

// Writes of either proxy before the fence are visible to reads of the other after it.
__device__ __forceinline__ void fence_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
