// A consumer: a warpgroup that computes 64 rows of a tile, one block of keys after another. Blocks are
// counted by how many are left (block_at). Products run asynchronously; none is in flight from one step to
// the next, or ptxas would serialise them (its warning C7510).
#pragma once
#include "params/forward.h"
#include "parts/wgmma/block_softmax.cuh"
/*%^shares%*/
#include "parts/wgmma/blocks.cuh"
/*%/shares%*/
#include "parts/wgmma/consumer_rings.cuh"
/*%#q_in_regs%*/
#include "parts/wgmma/fragments.cuh"
/*%/q_in_regs%*/
#include "parts/wgmma/layout.cuh"
#include "parts/wgmma/output_registers.cuh"
#include "parts/wgmma/products.cuh"
#include "parts/wgmma/rows.cuh"
#include "parts/wgmma/score_registers.cuh"
/*%#shares%*/
#include "parts/wgmma/share_blocks.cuh"
/*%/shares%*/
#include "parts/wgmma/softmax.cuh"
#include "parts/wgmma/tiles.cuh"
/*%#q_in_regs%*/
#include "ptx/ldmatrix.cuh"
/*%/q_in_regs%*/
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"

struct Consumer : ConsumerRings {
  int q_parity = 0;
  /*%#first_inside%*/
  bool first;  // whether the next block is a tile's first
  /*%/first_inside%*/

  BlockSoftmax softmax;
  /*%#q_in_regs%*/
  unsigned q[kQRegisterSteps][4];
  /*%/q_in_regs%*/
  /*%#q_in_shared%*/
  unsigned long long q_columns[kEndOfSteps];  // descriptors of Q's steps
  /*%/q_in_shared%*/

  __device__ __forceinline__ Consumer(unsigned shared_memory, int number, float scale)
      : ConsumerRings(shared_memory, number), softmax(scale) {
    declare_scores();
    declare_output();
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

  /*%#o_apart%*/
  // Called once products have read all of q.
  /*%#q_in_regs%*/
  // ldmatrix only issues its loads: where stores hold them up, the next tile's q could land first.
  /*%/q_in_regs%*/
  __device__ __forceinline__ void release_q() const {
    if (lane() == 0) mbarrier_arrive(shared + kQEmpty + 8 * warpgroup);
    __syncwarp();  // ptxas has been seen to let the lane that arrives go on alone
  }

  /*%/o_apart%*/
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

  /*%#first_apart%*/
  // First block of a tile: its scores only.
  __device__ __forceinline__ void first_step(const RowsOfThread& mine, int left) {
    wait_k();
    issue_scores();
    wgmma_wait<0>();
    release_k();
    softmax.choose_shifts(mine, left, true);
    softmax.exponentiate(softmax.rows.sum);
    pack_exponentials();
  }

  // Begins scores of a block and values of the one before, which are in flight together; the scores are there
  // afterwards.
  __device__ __forceinline__ void begin_products() {
    /*%#ping_pong%*/
    take_turn();
    /*%/ping_pong%*/
    issue_scores();
    /*%#rescale_early%*/
    rescale(softmax.rows);
    /*%/rescale_early%*/
    wait_v();
    wgmma_values(v_tile);
    /*%#ping_pong%*/
    pass_turn();
    /*%/ping_pong%*/
    wgmma_wait<1>();
  }

  /*%/first_apart%*/
  /*%#first_inside%*/
  // Begins scores of a block and values of the one before, which are in flight together; the scores are there
  // afterwards. The first block of a tile has no values to wait for, and takes no turn.
  /*%#rescale_early%*/
  __device__ __forceinline__ void begin_products(bool masked) {
  /*%/rescale_early%*/
  /*%^rescale_early%*/
  __device__ __forceinline__ void begin_products(bool) {
  /*%/rescale_early%*/
    /*%#ping_pong%*/
    if (!first) take_turn();
    /*%/ping_pong%*/
    issue_scores();
    /*%#rescale_early%*/
    if (!masked) rescale(softmax.rows);
    /*%/rescale_early%*/
    if (first) {
      wgmma_wait<0>();
    } else {
      wait_v();
      wgmma_values(v_tile);
      /*%#ping_pong%*/
      pass_turn();
      /*%/ping_pong%*/
      wgmma_wait<1>();
    }
  }

  // Ends a step: brings O and the rows up to date for the next one.
  /*%^rescale_early%*/
  __device__ __forceinline__ void end_step(bool) {
    if (!first) rescale(softmax.rows);
    /*%/rescale_early%*/
    /*%#rescale_early%*/
  __device__ __forceinline__ void end_step(bool masked) {
    // Here no values are in flight, whichever way the step went: in begin_products ptxas would have this wait
    // for the scores.
    if (masked) {
      if (!first) rescale(softmax.rows);
      settle(softmax.rows);
    }
    /*%/rescale_early%*/
    first = false;
  }

  /*%/first_inside%*/
  /*%#overlap%*/
  // Softmax of a block runs beside the values of the one before.
  /*%#short_values%*/
  // The values are done before the softmax is: P is packed beside its last quarter, into registers that the
  // values have let go.
  /*%/short_values%*/
  /*%#optimistic%*/
  __device__ __forceinline__ void step(const RowsOfThread& mine, const Tile& tile, int left, bool masked,
                                       const ForwardParams& p) {
  /*%/optimistic%*/
  /*%^optimistic%*/
  __device__ __forceinline__ void step(const RowsOfThread& mine, const Tile&, int left, bool masked,
                                       const ForwardParams&) {
  /*%/optimistic%*/
    wait_k();
    /*%#first_apart%*/
    begin_products();
    /*%/first_apart%*/
    /*%#first_inside%*/
    begin_products(masked);
    /*%/first_inside%*/
    release_k();
    /*%#release_q_in_first%*/
    if (first) release_q();
    /*%/release_q_in_first%*/
    softmax.choose_shifts(mine, left, masked);
    float sum[2];
    /*%#short_values%*/
    softmax.begin_exponentials(sum);
    /*%/short_values%*/
    /*%^short_values%*/
    softmax.exponentiate(sum);
    /*%/short_values%*/
    /*%#holds_outgrown%*/
    softmax.hold_exponentials(left, masked, sum);
    /*%/holds_outgrown%*/
    /*%#holds%*/
    softmax.hold_exponentials(sum);
    /*%/holds%*/
    wgmma_wait<0>();
    /*%#first_apart%*/
    release_v();
    /*%/first_apart%*/
    /*%#first_inside%*/
    if (!first) release_v();
    /*%/first_inside%*/
    /*%#short_values%*/
    softmax.end_exponentials(sum);
    /*%/short_values%*/
    /*%#optimistic%*/
    softmax.finish(mine, tile, left, masked, p, sum);
    /*%/optimistic%*/
    /*%^optimistic%*/
    softmax.finish(sum);
    /*%/optimistic%*/
    /*%#late_apart%*/
    rescale(softmax.rows);
    /*%/late_apart%*/
    /*%#first_inside%*/
    end_step(masked);
    /*%/first_inside%*/
  }

  // What is left after the last block: its values.
  __device__ __forceinline__ void last_step() {
    /*%#rescale_early%*/
    rescale(softmax.rows);
    /*%/rescale_early%*/
    wait_v();
    wgmma_values(v_tile);
    wgmma_wait<0>();
    release_v();
  }
  /*%/overlap%*/
  /*%^overlap%*/
  // Scores, softmax and values of a block in turn: P may take the registers of S.
  /*%#optimistic%*/
  __device__ __forceinline__ void step(const RowsOfThread& mine, const Tile& tile, int left, bool masked,
                                       const ForwardParams& p) {
  /*%/optimistic%*/
  /*%^optimistic%*/
  __device__ __forceinline__ void step(const RowsOfThread& mine, const Tile&, int left, bool masked,
                                       const ForwardParams&) {
  /*%/optimistic%*/
    wait_k();
    issue_scores();
    wgmma_wait<0>();
    release_k();
    softmax.choose_shifts(mine, left, masked);
    float sum[2];
    softmax.exponentiate(sum);
    /*%#optimistic%*/
    softmax.finish(mine, tile, left, masked, p, sum);
    /*%/optimistic%*/
    /*%^optimistic%*/
    softmax.finish(sum);
    /*%/optimistic%*/
    rescale(softmax.rows);
    wait_v();
    wgmma_values(v_tile);
    wgmma_wait<0>();
    release_v();
  }
  /*%/overlap%*/

  __device__ __forceinline__ void compute(const Tile& tile, const ForwardParams& p) {
    const int row = tile.row + kRowStep * warpgroup;
    /*%#downward%*/
    const RowsOfThread mine(row, p);
    /*%/downward%*/
    /*%^downward%*/
    RowsOfThread mine(row, p);
    /*%/downward%*/
    /*%#upward%*/
    mine.count_up_to(tile.blocks);
    /*%/upward%*/
    /*%^shares%*/
    const int blocks = blocks_of_rows(row, p);
    /*%/shares%*/
    /*%#shares%*/
    mine.count_from(tile);
    const int blocks = blocks_of_rows(row, tile, p);
    /*%/shares%*/
    softmax.rows = SoftmaxState();
    clear_output();
    const int passed = tile.blocks - blocks;
    /*%#ping_pong%*/
    // Each warpgroup takes one turn less than the tile has blocks: the first block that it multiplies takes
    // none.
    const int passed_turns = blocks > 0 ? passed : passed - 1;
    /*%/ping_pong%*/
    /*%^upward%*/
    /*%#ping_pong%*/
    pass_blocks(passed, passed_turns);
    /*%/ping_pong%*/
    /*%^ping_pong%*/
    pass_blocks(passed);
    /*%/ping_pong%*/
    /*%/upward%*/
    load_q();
    if (blocks > 0) {
      /*%^upward%*/
      int left = blocks - 1;
      /*%/upward%*/
      /*%#upward%*/
      int left = tile.blocks - 1;
      /*%/upward%*/
      /*%#first_inside%*/
      first = true;
      /*%/first_inside%*/
      /*%#first_apart%*/
      first_step(mine, left--);
      /*%/first_apart%*/
      /*%^overlap%*/
      step(mine, tile, left--, true, p);
      /*%/overlap%*/
      /*%#release_q_after_first%*/
      release_q();
      /*%/release_q_after_first%*/
      /*%#causal%*/
      /*%^shares%*/
      const int full = full_blocks(row, p);
      /*%/shares%*/
      /*%#shares%*/
      const int full = min(blocks - 1, full_blocks(row, tile, p));
      /*%/shares%*/
/*%/causal%*/
/*%#masked_first%*/
#pragma unroll 1  // the first block apart would take a sixth longer to compile
      do step(mine, tile, left, true, p);
      while (--left >= full);
/*%/masked_first%*/
/*%#masked_loop%*/
      for (; left >= full; --left) step(mine, tile, left, true, p);
/*%/masked_loop%*/
/*%#one_step%*/
/*%^causal%*/
      const int full = left;  // rows see all of the blocks before the last one
/*%/causal%*/
// Two loops would be no faster, and take a third longer to compile.
#pragma unroll 1
/*%^upward%*/
      for (; left >= 0; --left) step(mine, tile, left, left >= full, p);
/*%/upward%*/
/*%#upward%*/
      for (; left >= passed; --left) {
        const bool begins = left == tile.blocks - 1;  // searched for its maxima, as masked ones are
        step(mine, tile, left, begins || left < tile.blocks - full, p);
      }
/*%/upward%*/
/*%/one_step%*/
/*%^one_step%*/
#pragma unroll kUnroll
      for (; left >= 0; --left) step(mine, tile, left, false, p);
      /*%/one_step%*/
      /*%#release_q_after_scores%*/
      release_q();
      /*%/release_q_after_scores%*/
      /*%#overlap%*/
      last_step();
      /*%/overlap%*/
    }
    /*%#o_apart%*/
    else {
      release_q();
    }
    /*%/o_apart%*/
    /*%#upward%*/
    /*%#ping_pong%*/
    pass_blocks(passed, passed_turns);
    /*%/ping_pong%*/
    /*%^ping_pong%*/
    pass_blocks(passed);
    /*%/ping_pong%*/
    /*%/upward%*/
  }
};
