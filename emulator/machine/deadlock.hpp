// The report when no warp of a cluster can run any more: who waits where, and for what.
#pragma once

#include "emulator/machine/machine.hpp"

namespace flashjit::emulator {

// Stops the launch.
[[noreturn]] void report_deadlock(const Cluster& cluster);

}  // namespace flashjit::emulator
