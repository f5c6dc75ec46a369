#define FLASHJIT_HANDLERS "emulator/exec/float.inc"
#include "emulator/exec/access.hpp"
#include "emulator/exec/versions.inc"
