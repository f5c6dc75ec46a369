// Sums of products in fp32, on tensor cores that multiply bf16. Of the nine products of two numbers' parts,
// three are below the last bit of the whole; the other six are computed.
#pragma once

#include "parts/mma/split.cuh"
#include "ptx/mma.cuh"

// A sum of products, kept as two sums. Each time that mma adds 16 products it rounds towards zero, at the
// size of the sum. So small products have a sum of their own, and only products of the first parts are added
// to a large sum.
template <int kSize>
struct SplitSum {
  float high[kSize] = {};  // of the products of both first parts
  float low[kSize] = {};   // of the others

  /*%#together%*/
  // Adds A B to the eight numbers from `first` on; a, b: fragments of all parts.
  __device__ __forceinline__ void multiply(int first, const unsigned (&a)[kParts][4],
                                           const unsigned (&b)[kParts][4]) {
    multiply_low(first, a, b);
    multiply_parts(&high[first], a[0], b[0]);
  }
  /*%/together%*/
  /*%#apart%*/
  // Adds A B to the eight numbers from `first` on; a, b: fragments of all parts. The product of both first
  // parts is computed by itself and then added, rounded to nearest: a few more additions for a smaller error.
  __device__ __forceinline__ void multiply_apart(int first, const unsigned (&a)[kParts][4],
                                                 const unsigned (&b)[kParts][4]) {
    multiply_low(first, a, b);
    float product[8] = {};
    multiply_parts(product, a[0], b[0]);
#pragma unroll
    for (int i = 0; i < 8; ++i) high[first + i] += product[i];
  }
  /*%/apart%*/

  __device__ __forceinline__ float at(int i) const {
    return high[i] + low[i];
  }

 private:
  // The smallest products come first.
  /*%#swapped%*/
  // Those of the same size come in the order of B's parts: as where A and B have changed places, so that the
  // sum is the same to the last bit.
  /*%/swapped%*/
  __device__ __forceinline__ void multiply_low(int first, const unsigned (&a)[kParts][4],
                                               const unsigned (&b)[kParts][4]) {
#pragma unroll
    for (int parts = kParts - 1; parts > 0; --parts) {
#pragma unroll
      for (int i = 0; i <= parts; ++i) {
        /*%#swapped%*/
        multiply_parts(&low[first], a[parts - i], b[i]);
        /*%/swapped%*/
        /*%^swapped%*/
        multiply_parts(&low[first], a[i], b[parts - i]);
        /*%/swapped%*/
      }
    }
  }

  // The two halves of B take turns, so that no product waits for the one before.
  __device__ __forceinline__ static void multiply_parts(float* sum, const unsigned (&a)[4],
                                                        const unsigned (&b)[4]) {
    mma(sum, a, b[0], b[1]);
    mma(sum + 4, a, b[2], b[3]);
  }
};
