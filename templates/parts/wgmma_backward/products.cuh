// The products of the backward pass as single wgmma instructions. C++ cannot say their lists of operands: the
// renderer does.
#pragma once

// 64 x kScoreColumns; both factors are in shared memory, with rows along the sum. s = the product of 16 of
// their columns …
__device__ __forceinline__ void wgmma_scores_first(float (&s)[kScoreColumns / 2], unsigned long long a,
                                                   unsigned long long b) {
  asm volatile(
      /*%#scores_first%*/
      "/*%line%*/\n"
      /*%/scores_first%*/
      :
      /*%#scores_written%*/
      /*%line%*/
      /*%/scores_written%*/
      : "l"(a), "l"(b));
}

// … and s += the product of the next 16.
__device__ __forceinline__ void wgmma_scores_next(float (&s)[kScoreColumns / 2], unsigned long long a,
                                                  unsigned long long b) {
  asm volatile(
      /*%#scores_next%*/
      "/*%line%*/\n"
      /*%/scores_next%*/
      :
      /*%#scores_registers%*/
      /*%line%*/
      /*%/scores_registers%*/
      : "l"(a), "l"(b));
}

// A gradient of K or Q += 16 columns in registers times 16 rows of the other one: 64 x kHeadDim / kPartsQk.
__device__ __forceinline__ void wgmma_gradient_qk(float* d, const unsigned* a, unsigned long long b) {
  asm volatile(
      /*%#gradient_qk%*/
      "/*%line%*/\n"
      /*%/gradient_qk%*/
      :
      /*%#gradient_qk_registers%*/
      /*%line%*/
      /*%/gradient_qk_registers%*/
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/*%#dv%*/
// dV += 16 columns of P, transposed, times 16 rows of dO: 64 x kHeadDimV / kPartsV.
__device__ __forceinline__ void wgmma_gradient_v(float* d, const unsigned* a, unsigned long long b) {
  asm volatile(
      /*%#gradient_v%*/
      "/*%line%*/\n"
      /*%/gradient_v%*/
      :
      /*%#gradient_v_registers%*/
      /*%line%*/
      /*%/gradient_v_registers%*/
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
/*%/dv%*/

/*%#dq%*/
/*%^dq_transposed%*/
// dQ of 64 rows and kDqN columns, from 16 keys: dS times K. dS lies in shared memory with a row per key, so
// both factors are read across their rows.
/*%/dq_transposed%*/
/*%#dq_transposed%*/
// dQ transposed, of 64 columns and kDqN rows, from 16 keys: K transposed times dS.
/*%/dq_transposed%*/
__device__ __forceinline__ void wgmma_dq_first(float (&d)[kDqN / 2], unsigned long long a,
                                               unsigned long long b) {
  asm volatile(
      /*%#dq_first%*/
      "/*%line%*/\n"
      /*%/dq_first%*/
      :
      /*%#dq_written%*/
      /*%line%*/
      /*%/dq_written%*/
      : "l"(a), "l"(b));
}

__device__ __forceinline__ void wgmma_dq_next(float (&d)[kDqN / 2], unsigned long long a,
                                              unsigned long long b) {
  asm volatile(
      /*%#dq_next%*/
      "/*%line%*/\n"
      /*%/dq_next%*/
      :
      /*%#dq_registers%*/
      /*%line%*/
      /*%/dq_registers%*/
      : "l"(a), "l"(b));
}
/*%/dq%*/
/*%#dq_rest%*/

// The same for the rest of a CTA's columns.
__device__ __forceinline__ void wgmma_dq_rest_first(float (&d)[kDqRestN / 2], unsigned long long a,
                                                    unsigned long long b) {
  asm volatile(
      /*%#dq_rest_first%*/
      "/*%line%*/\n"
      /*%/dq_rest_first%*/
      :
      /*%#dq_rest_written%*/
      /*%line%*/
      /*%/dq_rest_written%*/
      : "l"(a), "l"(b));
}

__device__ __forceinline__ void wgmma_dq_rest_next(float (&d)[kDqRestN / 2], unsigned long long a,
                                                   unsigned long long b) {
  asm volatile(
      /*%#dq_rest_next%*/
      "/*%line%*/\n"
      /*%/dq_rest_next%*/
      :
      /*%#dq_rest_registers%*/
      /*%line%*/
      /*%/dq_rest_registers%*/
      : "l"(a), "l"(b));
}
/*%/dq_rest%*/
