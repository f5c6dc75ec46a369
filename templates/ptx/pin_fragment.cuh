// Registers of packed numbers that asynchronous products read (ptx/wgmma.cuh): as ptx/pin.cuh.
#pragma once

/*%#pair%*/
// Only registers kFirst to kEnd - 1.
/*%/pair%*/
/*%^pair%*/
// Only registers kFirst to kEnd - 1 …
/*%/pair%*/
template <int kFirst, int kEnd, int kCount>
__device__ __forceinline__ void pin_some(unsigned (&registers)[kCount]) {
#pragma unroll
  for (int i = kFirst; i < kEnd; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}
/*%^pair%*/

// … or all.
template <int kCount>
__device__ __forceinline__ void pin(unsigned (&registers)[kCount]) {
  pin_some<0, kCount>(registers);
}
/*%/pair%*/
