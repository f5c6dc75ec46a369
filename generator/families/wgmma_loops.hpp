// How family wgmma's forward pass goes over the blocks of a tile.
#pragma once

#include "flashjit/problem.hpp"
#include "generator/schedule.hpp"

namespace flashjit::wgmma_forward {

// Whether one loop takes both masked and unmasked blocks: with so many values, a step lasts longer than what
// the branch costs.
inline bool has_one_step(const Problem& problem, const WgmmaSchedule& schedule) {
  return problem.value_dim() > 192 && (problem.causal || schedule.overlap == 1);
}

// Whether the loop over masked blocks takes a tile's first block, too, which has no values of an earlier
// block beside it. This takes a sixth less time to compile. Q in registers beside wide values leaves no
// registers for it.
inline bool has_first_inside(const Problem& problem, const WgmmaSchedule& schedule) {
  const bool short_of_registers = schedule.q_in_regs > 0 && problem.value_dim() > 128;
  return schedule.overlap == 1 &&
         (has_one_step(problem, schedule) || (problem.causal && !short_of_registers));
}

}  // namespace flashjit::wgmma_forward
