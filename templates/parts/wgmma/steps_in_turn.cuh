// A consumer's steps, in which scores, softmax and values of a block follow each other: P may take the
// registers of S.
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
};
