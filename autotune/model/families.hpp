// One step of each family; step.cpp chooses.
#pragma once

#include "autotune/model/step.hpp"

namespace flashjit::autotune {

Step simt_step(const Problem& problem, const SimtSchedule& schedule, const Target& target,
               const Machine& machine);
Step mma_step(const Problem& problem, const MmaSchedule& schedule, const Target& target,
              const Machine& machine);
Step wgmma_step(const Problem& problem, const WgmmaSchedule& schedule, double blocks);
Step wgmma_fp32_step(const Problem& problem, const WgmmaSchedule& schedule);

}  // namespace flashjit::autotune
