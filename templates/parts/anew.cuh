// Numbers, hidden from the compiler.
#pragma once

// Keeps what is computed from a number out of registers until it is needed: the compiler would work it out as
// early as it can.
__device__ __forceinline__ int anew(int number) {
  asm volatile("" : "+r"(number));
  return number;
}
