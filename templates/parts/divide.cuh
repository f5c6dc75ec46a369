// Division as kernels look for tiles with it: what launches divide by, the host has prepared.
#pragma once

#include "params/divisor.h"

// The dividend from 0 to 2^31 - 1, where the error of the multiplier, below 1 in 2^31 of it, is too small to
// reach the next quotient. Three instructions that wait for each other, where a division has two dozen.
__device__ __forceinline__ int divide(int dividend, const Divisor& divisor) {
  const unsigned doubled = 2u * static_cast<unsigned>(dividend);
  return static_cast<int>(__umulhi(doubled, divisor.multiplier) >> divisor.shift);
}
