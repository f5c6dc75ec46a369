// Sixteen bytes of zeros in shared memory (PTX ISA, "st").
#pragma once

__device__ __forceinline__ void store_zeros(unsigned address) {
  asm volatile("st.shared.v4.u32 [%0], {0, 0, 0, 0};" ::"r"(address) : "memory");
}
