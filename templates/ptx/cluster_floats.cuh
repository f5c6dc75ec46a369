// Floats for another CTA's shared memory, or this one's (PTX ISA, "st").
#pragma once

__device__ __forceinline__ void cluster_store(unsigned address, float2 pair) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(pair.x), "f"(pair.y)
               : "memory");
}

__device__ __forceinline__ void cluster_store(unsigned address, float4 four) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(four.x), "f"(four.y),
               "f"(four.z), "f"(four.w)
               : "memory");
}
