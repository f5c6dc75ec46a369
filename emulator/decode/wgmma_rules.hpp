// Rules of wgmma that can be checked by decoding alone: a wgmma.fence between touching a register and giving
// it to a wgmma.
#pragma once

#include <vector>

#include "emulator/decode/flow.hpp"
#include "emulator/program.hpp"

namespace flashjit::emulator {

// Adds a StaticFinding for every wgmma whose accumulator or A registers another instruction may have touched
// since the last wgmma.fence (PTX ISA, "wgmma.fence"). Marks instructions that name rows which a wgmma uses
// (kTouchesAccumulator). `rows`: the row of each register.
void check_wgmma_rules(Program& program, const std::vector<FlowNode>& nodes, const Flow& flow, int registers,
                       const std::vector<u32>& code_of, const std::vector<int>& rows);

}  // namespace flashjit::emulator
