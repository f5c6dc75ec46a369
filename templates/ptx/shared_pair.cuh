// Two neighbouring floats of shared memory (PTX ISA, "ld").
#pragma once

__device__ __forceinline__ float2 load_pair(unsigned address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
  return pair;
}
