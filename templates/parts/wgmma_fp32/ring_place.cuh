// Places of shared memory that are filled in turn.
#pragma once

// A place in a ring of kStages, and the parity that its barriers are waited for with.
struct RingPlace {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};
