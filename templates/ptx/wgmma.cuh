// Warpgroup-wide asynchronous products (PTX ISA, "wgmma"). 128 threads multiply 64 rows; each holds, of its
// row g and its row g + 8, columns 8j + 2t and 8j + 2t + 1, where lane = 4g + t, in accumulators 4j .. 4j
// + 3.
#pragma once

// Returns once at most kInFlight committed groups are unfinished.
template <int kInFlight>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kInFlight) : "memory");
}

// Ties registers to this point of the program: the compiler knows nothing of products in flight, and would
// move reads over their wait.
template <int kCount>
__device__ __forceinline__ void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

// Only those from kFirst to before kEnd …
template <int kFirst, int kEnd, int kCount>
__device__ __forceinline__ void pin_some(unsigned (&registers)[kCount]) {
#pragma unroll
  for (int i = kFirst; i < kEnd; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

// … or all.
template <int kCount>
__device__ __forceinline__ void pin(unsigned (&registers)[kCount]) {
  pin_some<0, kCount>(registers);
}

// Describes a tile of 128-byte rows, swizzled over 1024 bytes. Its blocks of eight rows are 1024 bytes apart;
// panels of 64 columns are panel_bytes apart (used only where rows run along k). Addresses go up by
// descriptor + bytes / 16.
__device__ __forceinline__ unsigned long long wgmma_descriptor(unsigned address, unsigned panel_bytes) {
  constexpr unsigned long long kSwizzle128 = 1ull << 62;
  constexpr unsigned long long kEightRows = 1024 / 16;
  return kSwizzle128 | kEightRows << 32 | static_cast<unsigned long long>(panel_bytes / 16) << 16 |
         (address & 0x3ffff) / 16;
}
