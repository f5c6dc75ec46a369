// What both passes of family mma ask: rows of tiles in shared memory, and which archs are alike to ptxas.
#pragma once

#include "flashjit/target.hpp"

namespace flashjit {

// Bytes of a row of 16-bit elements, padded to whole 16-element steps of mma
// (templates/parts/mma/shared_tile.cuh).
constexpr int pitch_of(int head_dim) {
  return (head_dim + 15) / 16 * 32;
}

// Archs that ptxas gives the same registers, but for a few kernels, by the oldest of them.
inline int generation_of(const Target& target) {
  int of = 75;
  for (const int first : {80, 86, 90, 100, 120}) {
    if (target.capability >= first) of = first;
  }
  return of;
}

}  // namespace flashjit
