// Bulk additions of floats in shared memory to global memory (PTX ISA, "cp.reduce.async.bulk").
#pragma once
#include "ptx/bulk_group.cuh"

// Each float is added atomically. A multiple of 16 bytes, aligned to 16 on both sides.
__device__ __forceinline__ void bulk_add(float* to, unsigned from, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(from), "r"(bytes)
               : "memory");
}
