// How products in fp32 name their tiles.
#pragma once

#include "parts/wgmma_fp32/split_tile.cuh"
#include "ptx/wgmma.cuh"

// Tiles come as the lower halves of their descriptors, to which a step adds bytes / 16. The upper half is the
// same for all of them: the rows' swizzle, and the bytes of eight rows / 16 (PTX ISA, "matrix descriptor
// format").
constexpr unsigned kUpperHalf = 1u << 30 | 8 * kRowBytes / 16;

__device__ __forceinline__ unsigned lower_half(unsigned address) {
  return static_cast<unsigned>(wgmma_descriptor(address, 0));
}
