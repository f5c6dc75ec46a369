#define FLASHJIT_HANDLERS "emulator/exec/integer.inc"
#include "emulator/exec/access.hpp"
#include "emulator/exec/versions.inc"
