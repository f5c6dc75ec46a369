// Which archs are alike to ptxas, for both of family mma's lists of kernels that ptxas fits.
#pragma once

#include "flashjit/target.hpp"

namespace flashjit {

// For all archs of a generation ptxas takes the same registers, except in a few kernels. A generation is
// named by its oldest arch.
inline int generation_of(const Target& target) {
  int of = 75;
  for (const int first : {80, 86, 90, 100, 120}) {
    if (target.capability >= first) of = first;
  }
  return of;
}

}  // namespace flashjit
