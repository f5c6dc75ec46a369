// A question to all threads of a numbered barrier (PTX ISA, "bar.red").
#pragma once

// Waits until `threads` threads have come to this barrier. Returns whether `says` is true in any of them.
__device__ __forceinline__ bool named_barrier_any(int number, int threads, bool says) {
  int any;
  asm volatile(
      "{\n"
      ".reg .pred says, any;\n"
      "setp.ne.s32 says, %3, 0;\n"
      "bar.red.or.pred any, %1, %2, says;\n"
      "selp.s32 %0, 1, 0, any;\n"
      "}"
      : "=r"(any)
      : "r"(number), "r"(threads), "r"(static_cast<int>(says))
      : "memory");
  return any != 0;
}
