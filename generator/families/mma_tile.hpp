// Rows of family mma's tiles in shared memory, of both passes.
#pragma once

namespace flashjit {

// Bytes of a row of 16-bit elements, padded to whole 16-element steps of mma
// (templates/parts/mma/shared_tile.cuh).
constexpr int pitch_of(int head_dim) {
  return (head_dim + 15) / 16 * 32;
}

}  // namespace flashjit
