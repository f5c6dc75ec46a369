// In which order blocks of keys come.
#pragma once

// The block after which `left` others are still to come, where all rows see the first `full` in full. Blocks
// go from the last one down, except that block 0 comes right after the blocks that not all rows see in full.
// So a row sees both ends of its keys first, where its largest scores tend to be, and the shift that it takes
// from them rarely has to move.
__device__ __forceinline__ int ends_first(int left, int full) {
  return left >= full ? left : left == full - 1 ? 0 : left + 1;
}
