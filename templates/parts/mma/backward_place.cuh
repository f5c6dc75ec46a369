// Which part of a step each warp does in the backward pass over keys.
#pragma once

#include "ptx/thread_index.cuh"

constexpr int kHalf = kWarps / 2;            // warps of a half
constexpr int kKeyWarps = kHalf / kSharers;  // groups of kSharers warps; the warps of a group share keys
constexpr int kRowTiles = kTileN / kKeyWarps / 16;  // a warp's mma tiles of 16 keys
constexpr int kSteps = kTileM / 16;                 // of 16 query rows
constexpr int kOwnSteps = kSteps / kSharers;  // whose P or dS the warp computes; it multiplies with all steps
constexpr int kOwnRows = 16 * kOwnSteps;
constexpr int kColumnsK = kHeadDim / kSharers, kColumnsV = kHeadDimV / kSharers;  // of a warp's sums

// What follows from this thread's number. Each Place reads the number anew, or all that follows from it would
// be held in registers from step to step.
struct Place {
  int warp, lane;
  int key_warp, part;  // warps with the same keys follow each other; `part` tells them apart
  int first_key;       // of the warp's keys, in the tile
  int own_step;        // the warp's first own step
  /*%#shared_keys%*/
  int other_step;
  /*%/shared_keys%*/
  unsigned p_fragment;  // from the start of P^T to this lane's part of the warp's first fragment

  __device__ __forceinline__ Place() {
    const int thread = thread_index();
    warp = thread / 32, lane = thread % 32;
    key_warp = warp % kHalf / kSharers, part = warp % kSharers;
    first_key = key_warp * 16 * kRowTiles;
    own_step = part * kOwnSteps;
    /*%#shared_keys%*/
    other_step = kOwnSteps - own_step;
    /*%/shared_keys%*/
    p_fragment = (key_warp * kSteps * kRowTiles * 32 + lane) * 16;
  }
};
