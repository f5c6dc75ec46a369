// The warp's tensor-core product (PTX ISA, "mma"): d += a * b, a 16x16, b 16x8, d 16x8 in fp32.
// With lane = 4g + t: a[0] holds (g, 2t..2t+1), a[1] row g + 8, a[2] columns + 8, a[3] both; b0 holds rows
// 2t..2t+1 of column g, b1 rows + 8; d[0], d[1] hold (g, 2t..2t+1), d[2], d[3] the same of row g + 8.
#pragma once

/*%#mma_k16%*/
__device__ __forceinline__ void mma(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm(
      /*%#bf16%*/
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      /*%/bf16%*/
      /*%#fp16%*/
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      /*%/fp16%*/
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/*%/mma_k16%*/
/*%^mma_k16%*/
// Turing multiplies 8 deep: two products over the halves of k.
__device__ __forceinline__ void mma(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[2]), "r"(a[3]), "r"(b1));
}
/*%/mma_k16%*/
