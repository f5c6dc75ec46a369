// Adds a block to a sum (scores.cuh).
#pragma once

// lost: what the additions to the sum have lost to rounding so far, if kept (Kahan's sum, Higham section
// 4.3). An infinite sum has lost nothing, since no correction would bring it back.
__device__ __forceinline__ void add_block(float& sum, float& lost, float block) {
  if constexpr (kCareful) {
    const float term = block - lost;
    const float more = sum + term;
    lost = more - more == 0 ? (more - sum) - term : 0;
    sum = more;
  } else {
    sum += block;
  }
}
