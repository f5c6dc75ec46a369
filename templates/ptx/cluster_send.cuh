// Words that CTAs of a cluster put into each other's shared memory, and waits for them (PTX ISA,
// "mbarrier.arrive", "mbarrier.try_wait").
#pragma once

// Stores a word for another CTA, or this one. The receiver waits for it at a barrier of its own, and answers
// at a barrier of the sender.
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
