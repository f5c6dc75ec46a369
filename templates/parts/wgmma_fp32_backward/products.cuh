// The products of a step, as asm statements that the renderer writes down. Of the nine products of two
// numbers' parts, three are below the last bit of the whole; the other six are computed, the smallest first:
// each time that a tensor core adds 16 products it rounds towards zero, at the size of the sum.
#pragma once

#include "parts/wgmma_fp32/descriptors.cuh"
#include "parts/wgmma_fp32_backward/tiles.cuh"

// 16 columns of A B^T, where A and B are tiles of 64 rows. first: those of A's first part, which three of the
// six products have. sum = the product of both first parts …
__device__ __forceinline__ void wgmma_high(float (&sum)[32], const unsigned (&first)[4], unsigned b_tile) {
  asm volatile(
      /*%#high%*/
      "/*%line%*/\n"
      /*%/high%*/
      :
      /*%#high_sums%*/
      /*%line%*/
      /*%/high_sums%*/
      : "r"(first[0]), "r"(first[1]), "r"(first[2]), "r"(first[3]), "r"(b_tile), "n"(kUpperHalf)
      : "memory");
}
// … and sum += the others.
__device__ __forceinline__ void wgmma_low(float (&sum)[32], const unsigned (&first)[4], unsigned a_tile,
                                          unsigned b_tile) {
  asm volatile(
      /*%#low%*/
      "/*%line%*/\n"
      /*%/low%*/
      :
      /*%#low_sums%*/
      /*%line%*/
      /*%/low_sums%*/
      : "r"(first[0]), "r"(first[1]), "r"(first[2]), "r"(first[3]), "r"(a_tile), "r"(b_tile), "n"(kUpperHalf)
      : "memory");
}

/*%#whole_products%*/
// A panel's columns of a gradient, from the parts of A in registers: sum = P^T dO, dS^T Q or dS K.
__device__ __forceinline__ void wgmma_gradient(float (&sum)[kPanelColumns / 2],
                                               const unsigned (&a)[4][kParts][4], unsigned b_tile) {
  asm volatile(
      /*%#gradient%*/
      "/*%line%*/\n"
      /*%/gradient%*/
      :
      /*%#gradient_sums%*/
      /*%line%*/
      /*%/gradient_sums%*/
      :
      /*%#a_registers%*/
      /*%line%*/
      /*%/a_registers%*/
      "r"(b_tile), "n"(kUpperHalf)
      : "memory");
}
/*%/whole_products%*/
/*%#last_qk%*/
// The last columns of Q and K, which are fewer.
__device__ __forceinline__ void wgmma_gradient(float (&sum)[kHeadDim % kPanelColumns / 2],
                                               const unsigned (&a)[4][kParts][4], unsigned b_tile) {
  asm volatile(
      /*%#gradient_qk%*/
      "/*%line%*/\n"
      /*%/gradient_qk%*/
      :
      /*%#gradient_qk_sums%*/
      /*%line%*/
      /*%/gradient_qk_sums%*/
      :
      /*%#a_registers%*/
      /*%line%*/
      /*%/a_registers%*/
      "r"(b_tile), "n"(kUpperHalf)
      : "memory");
}
/*%/last_qk%*/
/*%#last_v%*/
// The last columns of dO, which are fewer.
__device__ __forceinline__ void wgmma_gradient(float (&sum)[kHeadDimV % kPanelColumns / 2],
                                               const unsigned (&a)[4][kParts][4], unsigned b_tile) {
  asm volatile(
      /*%#gradient_v%*/
      "/*%line%*/\n"
      /*%/gradient_v%*/
      :
      /*%#gradient_v_sums%*/
      /*%line%*/
      /*%/gradient_v_sums%*/
      :
      /*%#a_registers%*/
      /*%line%*/
      /*%/a_registers%*/
      "r"(b_tile), "n"(kUpperHalf)
      : "memory");
}
/*%/last_v%*/
