// Which instructions the machine must inspect to know whether a load from shared memory is done.
#pragma once

#include <vector>

#include "emulator/decode/flow.hpp"
#include "emulator/program.hpp"

namespace flashjit::emulator {

// Gives a LoadStep and kTouchesLoaded to every load from shared memory, and to every instruction that reads
// or overwrites a register which may hold a loaded value that nothing has used yet. Does nothing for a kernel
// in which only ordinary stores of its own CTA write shared memory, since these overtake no load.
void find_late_loads(Program& program, const std::vector<FlowNode>& nodes, const Flow& flow, int registers);

}  // namespace flashjit::emulator
