// The two products of a block of keys, each one asm statement: C++ cannot say the operands of wgmma, and the
// compilers take their time over every list of them. The renderer writes them down.
#pragma once
#include "parts/wgmma/layout.cuh"
#include "parts/wgmma/output_registers.cuh"
#include "parts/wgmma/score_registers.cuh"
#include "ptx/wgmma.cuh"

// Tiles come as the lower halves of their descriptors, to which a step adds bytes / 16. The upper half is the
// same for all of them: their rows' swizzle, and the bytes of eight rows / 16 (PTX ISA, "matrix descriptor
// format").
constexpr unsigned kUpperHalf = 1u << 30 | 8 * kRowBytes / 16;
/*%#narrow_k%*/
// Except for the last panel of K, whose rows are shorter.
constexpr unsigned kLastUpperHalf = (kLastKRowBytes == 32 ? 3u : 2u) << 30 | 8 * kLastKRowBytes / 16;
/*%/narrow_k%*/

// 16 columns of the head are 32 bytes of a row, four such steps to a panel.
constexpr int k_step(int step) {
  return step / 4 * (kTileN * kRowBytes / 16) + step % 4 * 2;
}

/*%#q_in_shared%*/
// The steps of Q that are in shared memory. Their whole descriptors are operands, which ptxas keeps from
// block to block where it has the registers; otherwise it assembles them between the products.
/*%#q_in_regs%*/
constexpr int kFirstSharedStep = kQRegisterSteps;
/*%/q_in_regs%*/
/*%^q_in_regs%*/
constexpr int kFirstSharedStep = 0;
/*%/q_in_regs%*/
constexpr int kEndOfSteps = (kHeadDim + 15) / 16;
constexpr int q_step(int step) {
  return step / 4 * (64 * kRowBytes / 16) + step % 4 * 2;
}

/*%/q_in_shared%*/
// 16 keys are 16 rows.
constexpr int v_step(int step) {
  return step * (16 * kRowBytes / 16);
}

// Begins s = q k^T, 16 columns of the head at a time: 64 x kTileN.
__device__ __forceinline__ void wgmma_scores(
    /*%#q_in_regs%*/
    const unsigned (&q)[kQRegisterSteps][4],
    /*%/q_in_regs%*/
    /*%#q_in_shared%*/
    const unsigned long long (&q_columns)[kEndOfSteps],
    /*%/q_in_shared%*/
    unsigned k_tile) {
  asm volatile(
      /*%#scores%*/
      "/*%line%*/\n"
      /*%/scores%*/
      ::
      /*%#q_registers%*/
      /*%line%*/
      /*%/q_registers%*/
      /*%#q_descriptors%*/
      /*%line%*/
      /*%/q_descriptors%*/
      "r"(k_tile),
      /*%#k_steps%*/
      /*%line%*/
      /*%/k_steps%*/
      /*%#narrow_k%*/
      "n"(kLastUpperHalf),
      /*%/narrow_k%*/
      "n"(kUpperHalf)
      : "memory");
}

// Begins o += p v, 16 keys at a time: 64 x kHeadDimV. The keys' rows of v run along o's columns.
__device__ __forceinline__ void wgmma_values(unsigned v_tile) {
  asm volatile(
      /*%#values%*/
      "/*%line%*/\n"
      /*%/values%*/
      ::"r"(v_tile),
      /*%#v_steps%*/
      /*%line%*/
      /*%/v_steps%*/
      "n"(kUpperHalf)
      : "memory");
}
