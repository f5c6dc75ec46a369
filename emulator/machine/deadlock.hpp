// The report when no warp of a cluster can run any more: which warps wait where, and for what.
#pragma once

#include "emulator/machine/machine.hpp"

namespace flashjit::emulator {

// Reports, and stops the launch.
[[noreturn]] void report_deadlock(const Cluster& cluster);

}  // namespace flashjit::emulator
