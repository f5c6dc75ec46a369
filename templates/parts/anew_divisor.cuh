// A divisor, hidden from the compiler.
#pragma once

#include "params/divisor.h"
#include "parts/anew.cuh"

__device__ __forceinline__ Divisor anew(const Divisor& divisor) {
  return {static_cast<unsigned>(anew(static_cast<int>(divisor.multiplier))), anew(divisor.shift)};
}
