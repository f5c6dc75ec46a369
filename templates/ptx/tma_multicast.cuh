// One copy for several CTAs of a cluster (PTX ISA, "cp.async.bulk.tensor", .multicast::cluster).
#pragma once
#include "ptx/tensor_map.cuh"

// Starts the copy of one box into the shared memory of each CTA whose bit of `ctas` is set, at the same place
// in each; its bytes complete on the barrier at the same place there.
__device__ __forceinline__ void tma_load_multicast(unsigned to, const TensorMap& map, unsigned barrier,
                                                   const BoxOrigin& at, unsigned short ctas) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(to),
      "l"(&map), "r"(at.x0), "r"(at.x1), "r"(at.x2), "r"(at.x3), "r"(at.x4), "r"(barrier), "h"(ctas)
      : "memory");
}
