#define FLASHJIT_HANDLERS "emulator/exec/integer.inc"
#include "emulator/exec/access.hpp"

// After everything that it needs, and in a block of its own so that nobody sorts it.
#include "emulator/exec/versions.inc"
