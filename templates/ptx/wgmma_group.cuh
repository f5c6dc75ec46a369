// What groups of asynchronous products begin and end with, where each product is a statement of its own (PTX
// ISA, "wgmma.fence", "wgmma.commit_group").
#pragma once

// Registers and shared memory written so far are what the products issued next will see.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
