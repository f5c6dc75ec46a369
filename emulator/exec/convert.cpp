#define FLASHJIT_HANDLERS "emulator/exec/convert.inc"
#include "emulator/exec/access.hpp"
#include "emulator/exec/versions.inc"
