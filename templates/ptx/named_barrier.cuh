// The sixteen numbered barriers of a CTA (PTX ISA, "bar"). Number 0 is __syncthreads'.
#pragma once

// Waits until `threads` threads have come to this barrier, whether or not they wait there.
__device__ __forceinline__ void named_barrier_sync(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
