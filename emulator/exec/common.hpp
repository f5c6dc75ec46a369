// What every file of handlers includes; versions.inc compiles the files themselves twice.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#define FLASHJIT_X86 1
#else
#define FLASHJIT_X86 0
#endif

#include "emulator/decode/decoding.hpp"
#include "emulator/decode/layout.hpp"
#include "emulator/exec/half.hpp"
#include "emulator/exec/tables.hpp"
#include "emulator/machine/machine.hpp"

namespace flashjit::emulator {

__extension__ using Int128 = __int128;
__extension__ using UInt128 = unsigned __int128;

}  // namespace flashjit::emulator
