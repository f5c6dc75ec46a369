// The handlers of convert.inc, for any CPU and for AVX2.
#define FLASHJIT_HANDLERS "emulator/exec/arithmetic/convert.inc"
#include "emulator/exec/access.hpp"

// After everything that it needs, and in a block of its own so that nobody sorts it.
#include "emulator/exec/versions.inc"
