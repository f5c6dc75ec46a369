// Copies from one CTA of a cluster to another (PTX ISA, "cp.async.bulk").
#pragma once

// Starts a copy of this CTA's shared memory to another's; its bytes complete on a barrier there.
__device__ __forceinline__ void bulk_send(unsigned to, unsigned from, int bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          to),
      "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
