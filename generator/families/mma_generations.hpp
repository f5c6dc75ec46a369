// Which archs are alike to ptxas, for family mma's lists of kernels that it fits, of both passes.
#pragma once

#include "flashjit/target.hpp"

namespace flashjit {

// Archs that ptxas gives the same registers, but for a few kernels, by the oldest of them.
inline int generation_of(const Target& target) {
  int of = 75;
  for (const int first : {80, 86, 90, 100, 120}) {
    if (target.capability >= first) of = first;
  }
  return of;
}

}  // namespace flashjit
