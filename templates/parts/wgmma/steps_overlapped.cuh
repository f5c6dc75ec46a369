// A consumer's steps, in which softmax of a block runs beside the values of the block before. Products run
// asynchronously; none is in flight from one step to the next, or ptxas would serialise them (its warning
// C7510).
#pragma once
#include "params/forward.h"
#include "parts/wgmma/consumer_scores.cuh"
#include "parts/wgmma/products.cuh"
#include "parts/wgmma/rows.cuh"
#include "parts/wgmma/softmax.cuh"
#include "parts/wgmma/tiles.cuh"
#include "ptx/wgmma.cuh"

struct ConsumerSteps : ConsumerScores {
  using ConsumerScores::ConsumerScores;

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
  // afterwards. The first block of a tile has no values to wait for.
  /*%#ping_pong%*/
  // It takes no turn.
  /*%/ping_pong%*/
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
};
