// Transposes 8x8 matrices in registers (PTX ISA, "movmatrix").
#pragma once

// Lane 4r + c gives elements (r, 2c) and (r, 2c + 1) of 16 bits, and gets those of the transposed matrix.
__device__ __forceinline__ unsigned movmatrix(unsigned pair) {
  unsigned transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}
