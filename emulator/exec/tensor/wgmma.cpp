// The handlers of wgmma.inc, for any CPU and for AVX2.
#define FLASHJIT_HANDLERS "emulator/exec/tensor/wgmma.inc"
#include <charconv>

#include "emulator/exec/access.hpp"
#include "emulator/machine/tensor_map.hpp"

// Included last, after everything it needs; in a block of its own, so that clang-format does not sort it.
#include "emulator/exec/versions.inc"
