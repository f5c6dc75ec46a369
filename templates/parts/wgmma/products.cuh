// The two products of attention as single wgmma instructions. C++ cannot say their lists of operands: the
// renderer does.
#pragma once
/*%#narrow_k%*/
#include "parts/wgmma/layout.cuh"
/*%/narrow_k%*/
#include "ptx/wgmma.cuh"

// A tile in shared memory, by the lower half of its descriptor, which goes up with the address: the upper one
// is the same for all of them.
__device__ __forceinline__ unsigned long long descriptor(unsigned tile) {
  constexpr unsigned long long kUpper = 0x40000040ull << 32;  // of wgmma_descriptor()
  return kUpper | tile;
}
/*%#narrow_k%*/
// But for the last panel of K (PTX ISA, "matrix descriptor format"): its rows' swizzle, and eight of them.
__device__ __forceinline__ unsigned long long last_descriptor(unsigned tile) {
  constexpr unsigned long long kSwizzle = kLastKRowBytes == 32 ? 3ull << 62 : 2ull << 62;
  constexpr unsigned long long kEightRows = 8 * kLastKRowBytes / 16;
  return kSwizzle | kEightRows << 32 | tile;
}
/*%/narrow_k%*/

/*%#q_in_regs%*/
// s = or += 16 columns of q, in registers, times the same columns of k's rows: 64 x kTileN.
template <bool kAccumulate>
__device__ __forceinline__ void wgmma_scores(float (&s)[kTileN / 2], const unsigned* q,
                                             unsigned long long k) {
  asm volatile(
      /*%#scores_of_registers%*/
      "/*%line%*/\n"
      /*%/scores_of_registers%*/
      :
      /*%#scores_registers%*/
      /*%line%*/
      /*%/scores_registers%*/
      : "r"(q[0]), "r"(q[1]), "r"(q[2]), "r"(q[3]), "l"(k), "n"(kAccumulate));
}
/*%/q_in_regs%*/
/*%#q_in_shared%*/
// s = or += 16 columns of q's rows, in shared memory, times the same columns of k's rows: 64 x kTileN.
template <bool kAccumulate>
__device__ __forceinline__ void wgmma_scores(float (&s)[kTileN / 2], unsigned q, unsigned long long k) {
  asm volatile(
      /*%#scores_of_shared%*/
      "/*%line%*/\n"
      /*%/scores_of_shared%*/
      :
      /*%#scores_registers%*/
      /*%line%*/
      /*%/scores_registers%*/
      : "l"(descriptor(q)), "l"(k), "n"(kAccumulate));
}
/*%/q_in_shared%*/

// o += 16 columns of p, in registers, times v's 16 rows, each of which runs along o's columns: 64 x
// kHeadDimV.
__device__ __forceinline__ void wgmma_values(float (&o)[kHeadDimV / 2], const unsigned* p, unsigned v) {
  asm volatile(
      /*%#values_instruction%*/
      "/*%line%*/\n"
      /*%/values_instruction%*/
      :
      /*%#values_registers%*/
      /*%line%*/
      /*%/values_registers%*/
      : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(descriptor(v)));
}
