// Parameters, hidden from the compiler.
#pragma once

// Keeps what is computed from a parameter out of registers from tile to tile: the producer has few.
__device__ __forceinline__ int anew(int parameter) {
  asm volatile("" : "+r"(parameter));
  return parameter;
}
