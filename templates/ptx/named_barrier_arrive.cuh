// Arrivals at a numbered barrier of a CTA (PTX ISA, "bar").
#pragma once

// Counts this thread without waiting.
__device__ __forceinline__ void named_barrier_arrive(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
