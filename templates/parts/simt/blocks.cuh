// Sums in blocks.
#pragma once

// Dims of a dot product that are summed apart before they meet what it has so far. A sum that grows over all
// of head_dim rounds at its full size each time, and what that does to a large score its weight shows: blocks
// of 8 take the error down to a third (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2),
// for one addition in nine.
constexpr int kBlock = 8;

// lost: what the additions to the sum have lost so far, if it is kept (Kahan's sum, Higham section 4.3).
// A sum that became infinite has lost nothing that would bring it back.
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
