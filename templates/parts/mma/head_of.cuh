// Where a head begins.
#pragma once

// Element (row 0, column 0) of a head.
__device__ __forceinline__ const unsigned short* head_of(const void* tensor, long long batch,
                                                         long long head) {
  return static_cast<const unsigned short*>(tensor) + batch + head;
}
