// Tiles of fp32 numbers in shared memory, each as three tiles of bf16 whose sum it is.
#pragma once

#include "parts/mma/split.cuh"

constexpr int kPanelColumns = 64;
constexpr int kRowBytes = 2 * kPanelColumns;  // of a panel: what the widest swizzle spans

// One panel after another, and in each of them its first parts' rows, then the second and third parts'. So
// one product may have the rows of two parts. The 16-byte chunks of a row change places, and the same chunk
// of eight rows lies in different banks (PTX ISA, "128B swizzle").
template <int kRowsOfTile, int kColumns>
struct SplitTile {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kPartBytes = kRows * kRowBytes;  // of a panel
  static constexpr int kPanelBytes = kParts * kPartBytes;
  static constexpr int kBytes = (kColumns + kPanelColumns - 1) / kPanelColumns * kPanelBytes;

  // Bytes from the tile's start to a chunk of 8 columns of the first part.
  __device__ static unsigned offset(unsigned row, unsigned chunk) {
    return chunk / 8 * kPanelBytes + row * kRowBytes + (chunk ^ row) % 8 * 16;
  }
};
