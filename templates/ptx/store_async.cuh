// Stores to another CTA's shared memory that tell a barrier there when they have landed (PTX ISA,
// "st.async").
#pragma once

// The 16 bytes complete on a barrier of the CTA that they go to.
__device__ __forceinline__ void store_async(unsigned address, float4 four, unsigned barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          address),
      "f"(four.x), "f"(four.y), "f"(four.z), "f"(four.w), "r"(barrier)
      : "memory");
}
