#define FLASHJIT_HANDLERS "emulator/exec/wgmma.inc"
#include "emulator/exec/access.hpp"
#include "emulator/exec/versions.inc"
#include "emulator/machine/tensor_map.hpp"
