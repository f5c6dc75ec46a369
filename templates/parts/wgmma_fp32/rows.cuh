// Rows of fp32 in global memory.
#pragma once

// A tile's rows of a head, from the head's row `first` on. Rows from `end` on do not exist.
struct Rows {
  const float* head;
  long long stride;  // from row to row, in elements
  int first, end;

  __device__ __forceinline__ bool have(int row) const { return first + row < end; }
  __device__ __forceinline__ const float* at(int row, int column) const {
    return head + (first + row) * stride + column;
  }
};
