#define FLASHJIT_HANDLERS "emulator/exec/wgmma.inc"
#include "emulator/exec/access.hpp"
#include "emulator/machine/tensor_map.hpp"

// After everything that it needs, and in a block of its own so that nobody sorts it.
#include "emulator/exec/versions.inc"
