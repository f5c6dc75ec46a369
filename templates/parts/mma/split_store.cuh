// The parts of eight numbers, on their way to shared memory.
#pragma once

#include "parts/mma/split.cuh"
#include "ptx/store_shared_16.cuh"

// Stores each part as a chunk of 16 bytes, part_bytes after the part before.
__device__ __forceinline__ void store_parts(unsigned to, int part_bytes, const unsigned (&parts)[4][kParts]) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    store_shared(to + part * part_bytes,
                 uint4{parts[0][part], parts[1][part], parts[2][part], parts[3][part]});
  }
}
