// Bulk copies of plain bytes from shared to global memory (PTX ISA, "cp.async.bulk").
#pragma once
#include "ptx/bulk_group.cuh"

// A multiple of 16 bytes, aligned to 16 on both sides.
__device__ __forceinline__ void bulk_store(void* to, unsigned from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
