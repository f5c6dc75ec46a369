// A consumer's scores, and what its softmax knows of their rows. Its 64 rows of Q stay in registers, in
// shared memory or in both, while blocks of K pass by.
#pragma once
#include "parts/wgmma/block_softmax.cuh"
#include "parts/wgmma/consumer_rings.cuh"
/*%#q_in_regs%*/
#include "parts/wgmma/fragments.cuh"
/*%/q_in_regs%*/
#include "parts/wgmma/layout.cuh"
#include "parts/wgmma/products.cuh"
#include "parts/wgmma/score_registers.cuh"
/*%#q_in_regs%*/
#include "ptx/ldmatrix.cuh"
/*%/q_in_regs%*/
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"

struct ConsumerScores : ConsumerRings {
  int q_parity = 0;
  /*%#first_inside%*/
  bool first;  // whether the next block of K is a tile's first
  /*%/first_inside%*/
  BlockSoftmax softmax;
  /*%#q_in_regs%*/
  unsigned q[kQRegisterSteps][4];
  /*%/q_in_regs%*/
  /*%#q_in_shared%*/
  unsigned long long q_columns[kEndOfSteps];  // descriptors of Q's steps
  /*%/q_in_shared%*/

  __device__ __forceinline__ ConsumerScores(unsigned shared_memory, int number, float scale)
      : ConsumerRings(shared_memory, number), softmax(scale) {
    declare_scores();
  }

  __device__ __forceinline__ void load_q() {
    const unsigned tile = shared + kQ + warpgroup * kQBytes;
    mbarrier_wait(shared + kQFull + 8 * warpgroup, q_parity);
    q_parity ^= 1;
/*%#q_in_regs%*/
#pragma unroll
    for (int step = 0; step < kQRegisterSteps; ++step) ldmatrix(q[step], tile + fragment_offset(step));
    /*%/q_in_regs%*/
    /*%#q_in_shared%*/
    // Worked out and pinned here: the compilers would work them out again for each block, between a turn and
    // its first product.
    unsigned lower_half = static_cast<unsigned>(wgmma_descriptor(tile, 0));
    asm volatile("" : "+r"(lower_half));
#pragma unroll
    for (int step = kFirstSharedStep; step < kEndOfSteps; ++step) {
      q_columns[step] = static_cast<unsigned long long>(kUpperHalf) << 32 | (lower_half + q_step(step));
      /*%#whole_descriptors%*/
      asm volatile("" : "+l"(q_columns[step]));
      /*%/whole_descriptors%*/
    }
    /*%/q_in_shared%*/
  }

  /*%#release_q%*/
  // Called once products have read all of q.
  /*%#q_in_regs%*/
  // ldmatrix only issues its loads: where stores hold them up, the next tile's q could land first.
  /*%/q_in_regs%*/
  __device__ __forceinline__ void release_q() const {
    if (lane() == 0) mbarrier_arrive(shared + kQEmpty + 8 * warpgroup);
    __syncwarp();  // ptxas has been seen to let the lane that arrives go on alone
  }

  /*%/release_q%*/
  __device__ __forceinline__ void issue_scores() {
    wgmma_scores(
        /*%#q_in_regs%*/
        q,
        /*%/q_in_regs%*/
        /*%#q_in_shared%*/
        q_columns,
        /*%/q_in_shared%*/
        k_tile);
  }
};
