// The values of %tid, %ctaid, %laneid and the like.
#pragma once

#include "emulator/machine/machine.hpp"

namespace flashjit::emulator {

u32 special_value(const Cta& cta, const Warp& warp, Special special, u32 lane);

}  // namespace flashjit::emulator
