// The two products of a block of keys, each one asm statement that the renderer writes down. Of the nine
// products of two numbers' parts, three are below the last bit of the whole; the other six are computed. The
// smallest come first: each time that a tensor core adds 16 products it rounds towards zero, at the size of
// the sum, which is of no consequence while the sum is small.
#pragma once

#include "parts/wgmma_fp32/descriptors.cuh"
#include "parts/wgmma_fp32/layout.cuh"

/*%#q_in_regs%*/
constexpr int kQSteps = (kHeadDim + 15) / 16;  // of 16 columns, which one product takes
/*%/q_in_regs%*/

// Begins the sums whose sum is q k^T: 64 x kTileN.
/*%#paired%*/
// Products of both first parts have a sum of their own, which begins with the third part of q. The others
// share one of twice the width: the second and third parts of k lie side by side, as do the first and second,
// so that a product reads its part of q once for both.
/*%/paired%*/
__device__ __forceinline__ void wgmma_scores(float (&sum)[kScoreSums],
                                             /*%#q_in_regs%*/
                                             const unsigned (&q)[kQSteps][kQRegisterParts][4],
                                             /*%/q_in_regs%*/
                                             /*%#q_in_shared%*/
                                             unsigned q_tile,
                                             /*%/q_in_shared%*/
                                             unsigned k_tile) {
  asm volatile(
      /*%#scores%*/
      "/*%line%*/\n"
      /*%/scores%*/
      :
      /*%#score_sums%*/
      /*%line%*/
      /*%/score_sums%*/
      :
      /*%#q_registers%*/
      /*%line%*/
      /*%/q_registers%*/
      /*%#q_in_shared%*/
      "r"(q_tile),
      /*%/q_in_shared%*/
      "r"(k_tile), "n"(kUpperHalf)
      : "memory");
}

/*%#whole_v%*/
// Begins sum = p v for columns of v: 64 x kColumnsAtOnce.
__device__ __forceinline__ void wgmma_values(float (&sum)[kColumnsAtOnce / 2],
                                             const unsigned (&p)[kTileN / 16][kParts][4], unsigned v_tile) {
  asm volatile(
      /*%#values%*/
      "/*%line%*/\n"
      /*%/values%*/
      :
      /*%#value_sums%*/
      /*%line%*/
      /*%/value_sums%*/
      :
      /*%#weights%*/
      /*%line%*/
      /*%/weights%*/
      "r"(v_tile), "n"(kUpperHalf)
      : "memory");
}

/*%/whole_v%*/
/*%#last_v%*/
// Likewise for the last columns, which are fewer.
constexpr int kLastColumns = kHeadDimV % kColumnsAtOnce;
__device__ __forceinline__ void wgmma_values(float (&sum)[kLastColumns / 2],
                                             const unsigned (&p)[kTileN / 16][kParts][4], unsigned v_tile) {
  asm volatile(
      /*%#last_values%*/
      "/*%line%*/\n"
      /*%/last_values%*/
      :
      /*%#last_value_sums%*/
      /*%line%*/
      /*%/last_value_sums%*/
      :
      /*%#weights%*/
      /*%line%*/
      /*%/weights%*/
      "r"(v_tile), "n"(kUpperHalf)
      : "memory");
}
/*%/last_v%*/
