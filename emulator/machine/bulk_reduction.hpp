// What a bulk copy to global memory does with the elements that are there (PTX ISA, cp.reduce.async.bulk).
#pragma once

#include <cstddef>

#include "emulator/machine/machine.hpp"

namespace flashjit::emulator {

// Puts `bytes` of `from` in the place of `to`, or combines them with what is there, as the job says.
void write_global(const CopyJob& job, std::byte* to, const std::byte* from, u32 bytes);

}  // namespace flashjit::emulator
