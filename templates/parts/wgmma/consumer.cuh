// A consumer: a warpgroup that computes 64 rows of a tile, one block of keys after another. Blocks are
// counted by how many are left (block_at).
#pragma once
#include "params/forward.h"
/*%^shares%*/
#include "parts/wgmma/blocks.cuh"
/*%/shares%*/
#include "parts/wgmma/output_registers.cuh"
#include "parts/wgmma/rows.cuh"
/*%#shares%*/
#include "parts/wgmma/share_blocks.cuh"
/*%/shares%*/
#include "parts/wgmma/softmax.cuh"
/*%^overlap%*/
#include "parts/wgmma/steps_in_turn.cuh"
/*%/overlap%*/
/*%#overlap%*/
#include "parts/wgmma/steps_overlapped.cuh"
/*%/overlap%*/
#include "parts/wgmma/tiles.cuh"

struct Consumer : ConsumerSteps {
  __device__ __forceinline__ Consumer(unsigned shared_memory, int number, float scale)
      : ConsumerSteps(shared_memory, number, scale) {
    declare_output();
  }

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
      /*%#release_q%*/
    } else {
      release_q();
      /*%/release_q%*/
    }
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
