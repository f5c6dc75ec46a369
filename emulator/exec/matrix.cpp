#define FLASHJIT_HANDLERS "emulator/exec/matrix.inc"
#include "emulator/exec/access.hpp"
#include "emulator/exec/versions.inc"
