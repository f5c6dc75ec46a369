// O on its way from its registers (output_registers.cuh) to shared memory, from where TMA stores it: panels
// of 64 columns as pairs of 16 bits, each row scaled by its factor (PTX ISA, "stmatrix"). `at` is the address
// of the first fragment of the first panel there (fragments.cuh); this panel is kPlace panels further. With
// the swizzle, the addresses of a panel's four fragments differ in two bits.
#pragma once
#include "parts/wgmma/layout.cuh"

/*%#whole_v%*/
template <int kPanel, int kPlace>
__device__ __forceinline__ void stage_panel(unsigned at, const float (&factor)[2]) {
  asm volatile(
      "{\n"
      ".reg .f32 x<2>;\n"
      ".reg .b32 to, pair<4>;\n"
      /*%#panel_staged%*/
      "/*%line%*/\n"
      /*%/panel_staged%*/
      "}\n" ::
      /*%#panel_registers%*/
      /*%line%*/
      /*%/panel_registers%*/
      "r"(at), "f"(factor[0]), "f"(factor[1]), "n"(kPlace * 64 * kRowBytes)
      : "memory");
}
/*%/whole_v%*/
/*%#last_v%*/
// The head dim ends inside of this one.
template <int kPlace>
__device__ __forceinline__ void stage_last_panel(unsigned at, const float (&factor)[2]) {
  asm volatile(
      "{\n"
      ".reg .f32 x<2>;\n"
      ".reg .b32 to, pair<4>;\n"
      /*%#last_panel_staged%*/
      "/*%line%*/\n"
      /*%/last_panel_staged%*/
      "}\n" ::"r"(at),
      "f"(factor[0]), "f"(factor[1]), "n"(kPlace * 64 * kRowBytes)
      : "memory");
}
/*%/last_v%*/
