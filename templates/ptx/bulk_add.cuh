// Bulk copies from shared to global memory, and additions of floats to it (PTX ISA, "cp.async.bulk",
// "cp.reduce.async.bulk"). A multiple of 16 bytes, aligned to 16 on both sides.
#pragma once
#include "ptx/bulk_group.cuh"

__device__ __forceinline__ void bulk_store(float* to, unsigned from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}

// Each float is added atomically.
__device__ __forceinline__ void bulk_add(float* to, unsigned from, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(from), "r"(bytes)
               : "memory");
}
