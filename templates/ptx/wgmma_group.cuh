// The beginning and end of a group of asynchronous products, where each product is an asm statement of its
// own (PTX ISA, "wgmma.fence", "wgmma.commit_group").
#pragma once

// The products issued next see all registers and shared memory written so far.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
