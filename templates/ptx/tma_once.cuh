// Boxes that no other tile reads (PTX ISA, "cp.async.bulk.tensor", .L2::cache_hint, and "createpolicy").
#pragma once
#include "ptx/tensor_map.cuh"

// Starts the copy of one box into shared memory; its bytes complete on the barrier. Elements outside the
// tensor arrive as zeros, and count as bytes. L2 evicts the box's lines first.
__device__ __forceinline__ void tma_load_once(unsigned to, const TensorMap& map, unsigned barrier,
                                              const BoxOrigin& at) {
  asm volatile(
      "{\n"
      ".reg .b64 evict_first;\n"
      "createpolicy.fractional.L2::evict_first.b64 evict_first;\n"
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%2, %3, %4, %5, %6}], [%7], evict_first;\n"
      "}" ::"r"(to),
      "l"(&map), "r"(at.x0), "r"(at.x1), "r"(at.x2), "r"(at.x3), "r"(at.x4), "r"(barrier)
      : "memory");
}
