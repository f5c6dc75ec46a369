// The steps of a CTA: the tiles of query rows that see any of its keys, of one query head of the group after
// the other.
#pragma once

#include "params/backward.h"
/*%#causal%*/
#include "parts/diagonal.cuh"
/*%/causal%*/
#include "parts/mma/backward_key_tile.cuh"

struct Steps {
  int first_m, end_m;
  int left;     // steps, this one included
  int m, pair;  // this step's tile; its query head's number, counted through all batches

  __device__ __forceinline__ Steps(const BackwardParams& params, const KeyTile& tile) {
    end_m = (params.seqlen_q + kTileM - 1) / kTileM;
    /*%#causal%*/
    first_m = max(tile.n * kTileN - diagonal(params), 0) / kTileM;  // rows above see none of the CTA's keys
    /*%/causal%*/
    /*%^causal%*/
    first_m = 0;
    /*%/causal%*/
    left = params.group * max(end_m - first_m, 0);
    m = first_m;
    pair = tile.batch * params.heads + tile.head * params.group;
  }

  __device__ __forceinline__ void advance() {
    --left;
    if (++m < end_m) return;
    m = first_m;
    ++pair;
  }
};
