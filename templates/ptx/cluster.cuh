// CTAs of a cluster, and each other's shared memory (PTX ISA, "mapa", "mbarrier.arrive", "barrier.cluster").
#pragma once

// This CTA's number in its cluster.
__device__ __forceinline__ int cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

// Where CTA `rank` has what this one has at a shared-memory address.
__device__ __forceinline__ unsigned in_cta(int rank, unsigned address) {
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// At another CTA's barrier. Says that this one has read, not that it has written: that would need
// .release.cluster, which waits for all that is under way.
__device__ __forceinline__ void cluster_arrive_read(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// All threads of all CTAs that have not returned.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
