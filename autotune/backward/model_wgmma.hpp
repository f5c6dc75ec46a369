// What predict_backward knows of family wgmma in 16 bits.
#pragma once

#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"
#include "generator/schedule.hpp"

namespace flashjit::autotune {

// Milliseconds of the kernels that multiply: one, or two where dQ has a pass of its own.
double wgmma_ms(const Problem& problem, const Shape& shape, const WgmmaBackwardSchedule& schedule,
                const Target& target);

}  // namespace flashjit::autotune
