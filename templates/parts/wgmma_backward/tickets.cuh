// How CTAs share out the tiles of a grid: one thread of each takes numbers from a counter in device memory
// and hands them on to all who work on the tile.
/*%#pair%*/
// Here the first CTA of two does so for both.
/*%/pair%*/
#pragma once
#include "params/backward.h"
#include "parts/wgmma_backward/panels.cuh"
/*%#pair%*/
#include "ptx/cluster.cuh"
#include "ptx/cluster_send.cuh"
/*%/pair%*/
#include "ptx/grid_size.cuh"
#include "ptx/load_shared.cuh"
#include "ptx/mbarrier.cuh"
/*%^pair%*/
#include "ptx/store_shared.cuh"
/*%/pair%*/

// From kTickets on, which is the layout's: of two tiles' numbers the barriers that say that one has come,
// those that say that all have read it, and the numbers.
constexpr int kTicketFull = kTickets;
constexpr int kTicketEmpty = kTicketFull + 16;
constexpr int kTicket = kTicketEmpty + 16;
constexpr int kTicketBytes = kTicket + 8 - kTickets;

__device__ __forceinline__ void make_ticket_barriers(unsigned shared, int readers) {
  for (int slot = 0; slot < 2; ++slot) {
    mbarrier_init(shared + kTicketFull + 8 * slot, 1);
    mbarrier_init(shared + kTicketEmpty + 8 * slot, readers);
  }
}

__device__ __forceinline__ void wait_for_ticket(unsigned shared, int round) {
  /*%^pair%*/
  mbarrier_wait(shared + kTicketFull + 8 * (round % 2), round / 2 % 2);
  /*%/pair%*/
  /*%#pair%*/
  cluster_wait(shared + kTicketFull + 8 * (round % 2), round / 2 % 2);
  /*%/pair%*/
}

// Says that it has been read.
__device__ __forceinline__ void return_ticket(unsigned shared, int round) {
  /*%^pair%*/
  mbarrier_arrive(shared + kTicketEmpty + 8 * (round % 2));
  /*%/pair%*/
  /*%#pair%*/
  cluster_arrive(in_cta(0, shared + kTicketEmpty + 8 * (round % 2)));
  /*%/pair%*/
}

// May be read between wait_for_ticket and return_ticket.
__device__ __forceinline__ int number_of_ticket(unsigned shared, int round) {
  return load_shared(shared + kTicket + 4 * (round % 2));
}

// For one thread.
__device__ __forceinline__ int read_ticket(unsigned shared, int round) {
  wait_for_ticket(shared, round);
  const int index = number_of_ticket(shared, round);
  return_ticket(shared, round);
  return index;
}

// For a whole warp.
__device__ __forceinline__ void return_ticket_together(unsigned shared, int round) {
  __syncwarp();  // all lanes have read it
  if (lane() == 0) return_ticket(shared, round);
}
/*%^splits%*/
__device__ __forceinline__ int read_ticket_together(unsigned shared, int round) {
  wait_for_ticket(shared, round);
  const int index = number_of_ticket(shared, round);
  return_ticket_together(shared, round);
  return index;
}
/*%/splits%*/

// The tile of the CTA's n-th round; -1 after the last one. The last CTA to finish leaves the counter zero:
// the others have drawn by then.
__device__ __forceinline__ int next_ticket(unsigned shared, int round, int tiles, const BackwardParams& p) {
  /*%#pair%*/
  if (cluster_rank() != 0) return read_ticket(shared, round);
  /*%/pair%*/
  const int slot = round % 2;
  /*%^pair%*/
  mbarrier_wait(shared + kTicketEmpty + 8 * slot, round / 2 % 2 ^ 1);
  /*%/pair%*/
  /*%#pair%*/
  cluster_wait(shared + kTicketEmpty + 8 * slot, round / 2 % 2 ^ 1);
  /*%/pair%*/
  int index = atomicAdd(p.tile_counter, 1);
  if (index >= tiles) {
    index = -1;
    __threadfence();  // with an addition that is in order itself ptxas spills at head_dim 256
    if (atomicAdd(p.tile_counter + 1, 1) == grid_size() / kCtasPerTile - 1) {
      __threadfence();
      p.tile_counter[0] = 0;
      p.tile_counter[1] = 0;
    }
  }
  /*%^pair%*/
  store_shared(shared + kTicket + 4 * slot, index);
  mbarrier_arrive(shared + kTicketFull + 8 * slot);
  /*%/pair%*/
  /*%#pair%*/
  for (int rank = 0; rank < kCtasPerTile; ++rank) {
    cluster_store(in_cta(rank, shared + kTicket + 4 * slot), index);
    cluster_arrive(in_cta(rank, shared + kTicketFull + 8 * slot));
  }
  /*%/pair%*/
  return index;
}
