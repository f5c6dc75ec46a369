// Which tile comes next: one producer takes tickets, the numbers of tiles, from a counter in device memory
// and hands them on.
/*%#cluster%*/
// The producer of a cluster's first CTA does so for all of the cluster.
/*%/cluster%*/
#pragma once
#include "params/forward.h"
#include "parts/wgmma/layout.cuh"
#include "ptx/add_acquire_release.cuh"
/*%#cluster%*/
#include "ptx/cluster.cuh"
#include "ptx/cluster_arrive_read.cuh"
#include "ptx/cluster_send.cuh"
/*%/cluster%*/
#include "ptx/load_shared.cuh"
#include "ptx/mbarrier.cuh"
/*%^cluster%*/
#include "ptx/store_shared.cuh"
/*%/cluster%*/

__device__ __forceinline__ void wait_for_ticket(unsigned shared, int slot, int parity) {
  /*%^cluster%*/
  mbarrier_wait(shared + kTicketFull + 8 * slot, parity);
  /*%/cluster%*/
  /*%#cluster%*/
  cluster_wait(shared + kTicketFull + 8 * slot, parity);
  /*%/cluster%*/
}

// For one thread of each reader: reads the tile's number, and says that it has.
__device__ __forceinline__ int read_ticket(unsigned shared, int slot) {
  const int number = static_cast<int>(load_shared(shared + kTicket + 4 * slot));
  /*%^cluster%*/
  mbarrier_arrive(shared + kTicketEmpty + 8 * slot);
  /*%/cluster%*/
  /*%#cluster%*/
  // The next number is stored by another CTA, so that nothing puts its store after this load: an arrival does
  // not wait for loads. An arrival that releases to the cluster would, but would also wait for all else that
  // the thread has under way: up to 2.6 % of a pass. Only this one load must have come, and it has once its
  // result is looked at.
  if (number >= 0) cluster_arrive_read(in_cta(0, shared + kTicketEmpty + 8 * slot));
  /*%/cluster%*/
  return number;
}

/*%#sections%*/
// The tile at place `drawn` of the order. In the second wave the two halves alternate: the longest, the
// middle one, the second longest, and so on. CTAs then end at times that differ by up to a tile of the third
// wave. Longest first, all would end together, and the third wave's longest tile would end alone.
__device__ __forceinline__ int riffle(int drawn, const ForwardParams& p) {
  const int place = drawn - p.riffled_from;
  if (place < 0 || place >= p.riffled) return drawn;
  return drawn - (place + 1) / 2 + place % 2 * ((p.riffled + 1) / 2);
}

/*%/sections%*/
// For the producer: the number of its n-th tile; not below the number of tiles when there are no more.
__device__ __forceinline__ int next_ticket(unsigned shared, int n, const ForwardParams& p) {
  const int slot = n & 1;
  /*%#cluster%*/
  if (cluster_rank() != 0) {
    wait_for_ticket(shared, slot, n >> 1 & 1);
    return read_ticket(shared, slot);
  }
  /*%/cluster%*/
  int index = atomicAdd(p.tile_counter, 1);
  /*%#sections%*/
  index = riffle(index, p);
  /*%/sections%*/
  mbarrier_wait(shared + kTicketEmpty + 8 * slot, ~n >> 1 & 1);
  /*%^cluster%*/
  store_shared(shared + kTicket + 4 * slot, index);
  mbarrier_arrive(shared + kTicketFull + 8 * slot);
  /*%/cluster%*/
  /*%#cluster%*/
  for (int rank = 0; rank < kCluster; ++rank) {
    cluster_store(in_cta(rank, shared + kTicket + 4 * slot), index);
    cluster_arrive(in_cta(rank, shared + kTicketFull + 8 * slot));
  }
  /*%/cluster%*/
  return index;
}

// The last producer to finish leaves the counter at zero: the others have drawn by then.
__device__ __forceinline__ void leave_counter(const ForwardParams& p) {
  /*%^cluster%*/
  const int takers = static_cast<int>(gridDim.x);
  /*%/cluster%*/
  /*%#cluster%*/
  if (cluster_rank() != 0) return;
  const int takers = static_cast<int>(gridDim.x) / kCluster;
  /*%/cluster%*/
  if (add_acquire_release(p.tile_counter + 1, 1) == takers - 1) {
    p.tile_counter[0] = 0;
    p.tile_counter[1] = 0;
  }
}
