// What CTAs of a cluster put into each other's shared memory, and waits for it (PTX ISA, "mbarrier.arrive",
// "mbarrier.try_wait", "cp.async.bulk").
#pragma once

// A word for another CTA, or this one, which waits for it at a barrier there, and answers at one here.
__device__ __forceinline__ void cluster_store(unsigned address, unsigned value) {
  asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void cluster_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void cluster_wait(unsigned barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra out;\n"
      "bra again;\n"
      "out:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Starts a copy of this CTA's shared memory to another's; its bytes complete on a barrier there.
__device__ __forceinline__ void bulk_send(unsigned to, unsigned from, int bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          to),
      "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
