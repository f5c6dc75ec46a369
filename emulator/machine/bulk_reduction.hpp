// How a bulk copy to global memory combines with the elements that are there (PTX ISA, cp.reduce.async.bulk).
#pragma once

#include <cstddef>

#include "emulator/machine/machine.hpp"

namespace flashjit::emulator {

// Replaces `bytes` at `to` by those of `from`, or combines the two, as the job says.
void write_global(const CopyJob& job, std::byte* to, const std::byte* from, u32 bytes);

}  // namespace flashjit::emulator
