// Arrivals at barriers of other CTAs of a cluster (PTX ISA, "mbarrier.arrive").
#pragma once

// Arrives at another CTA's barrier. This says that the thread has read, not that it has written: that would
// need .release.cluster, which waits for everything under way.
__device__ __forceinline__ void cluster_arrive_read(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
