// stmatrix with each 8x8 matrix transposed on the way (PTX ISA, "stmatrix").
#pragma once

__device__ __forceinline__ void stmatrix_transposed(unsigned address, unsigned a, unsigned b, unsigned c,
                                                    unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
