// Boxes of a tensor from shared memory (PTX ISA, "cp.async.bulk.tensor").
#pragma once
#include "ptx/bulk_group.cuh"
#include "ptx/tensor_map.cuh"

// Starts the copy of one box out of shared memory; elements outside the tensor are dropped.
__device__ __forceinline__ void tma_store(const TensorMap& map, unsigned from, const BoxOrigin& at) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
      "r"(from), "r"(at.x0), "r"(at.x1), "r"(at.x2), "r"(at.x3), "r"(at.x4)
      : "memory");
}
