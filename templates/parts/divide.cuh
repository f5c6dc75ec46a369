// Division, which kernels need to find their tiles: the host has prepared a launch's divisors.
#pragma once

#include "params/divisor.h"

// The dividend is from 0 to 2^31 - 1. There the multiplier's error, below 1 in 2^31 of it, is too small to
// reach the next quotient. This takes three instructions that wait for each other, where a division has two
// dozen.
__device__ __forceinline__ int divide(int dividend, const Divisor& divisor) {
  const unsigned doubled = 2u * static_cast<unsigned>(dividend);
  return static_cast<int>(__umulhi(doubled, divisor.multiplier) >> divisor.shift);
}
