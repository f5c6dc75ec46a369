// The handlers of float.inc, for any CPU and for AVX2.
#define FLASHJIT_HANDLERS "emulator/exec/arithmetic/float.inc"
#include "emulator/exec/access.hpp"

// Included last, after everything it needs; in a block of its own, so that clang-format does not sort it.
#include "emulator/exec/versions.inc"
