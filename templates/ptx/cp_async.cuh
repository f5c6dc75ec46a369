// Asynchronous copies from global to shared memory (PTX ISA, "cp.async"; sm_80 and later).
#pragma once

// Copies 16 bytes, bypassing L1. Where `wanted` is false, nothing is read and zeros are written.
__device__ __forceinline__ void cp_async_16(unsigned shared, const void* global, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(wanted ? 16 : 0)
               : "memory");
}

// Closes the group of this thread's copies since the last commit. An empty group counts too.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's latest groups are still under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
