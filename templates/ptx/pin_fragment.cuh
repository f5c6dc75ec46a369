// Registers of packed numbers that asynchronous products read (ptx/wgmma.cuh): as ptx/pin.cuh.
#pragma once

// Only registers kFirst to kEnd - 1 …
template <int kFirst, int kEnd, int kCount>
__device__ __forceinline__ void pin_some(unsigned (&registers)[kCount]) {
#pragma unroll
  for (int i = kFirst; i < kEnd; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

// … or all.
template <int kCount>
__device__ __forceinline__ void pin(unsigned (&registers)[kCount]) {
  pin_some<0, kCount>(registers);
}
