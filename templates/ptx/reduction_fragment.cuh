// Adds accumulators of mma to sums in global memory (PTX ISA, "red"; vectors: sm_90 and later). The 128 sums
// of a product of 16 rows and 8 columns are contiguous, in an order that lets each instruction of a warp add
// to contiguous memory: with vectors lane by lane, the four of each lane together; without vectors
// accumulator by accumulator, those of all lanes together.
#pragma once

/*%#red_vectors%*/
constexpr int kLaneSums = 4;  // from one lane's sums to the next's
/*%/red_vectors%*/
/*%^red_vectors%*/
constexpr int kLaneSums = 1;  // from one lane's sums to the next's
/*%/red_vectors%*/

// sums: this lane's first; sum: its four accumulators.
__device__ __forceinline__ void add_fragment(float* sums, const float* sum) {
  /*%#red_vectors%*/
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(sums), "f"(sum[0]), "f"(sum[1]),
               "f"(sum[2]), "f"(sum[3])
               : "memory");
  /*%/red_vectors%*/
  /*%^red_vectors%*/
#pragma unroll
  for (int i = 0; i < 4; ++i)
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(sums + 32 * i), "f"(sum[i]) : "memory");
  /*%/red_vectors%*/
}
