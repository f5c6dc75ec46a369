// What a CTA of family wgmma's forward pass keeps in shared memory.
#pragma once

#include "flashjit/problem.hpp"
#include "generator/families/wgmma_panels.hpp"
#include "generator/schedule.hpp"

namespace flashjit::wgmma_forward {

using namespace wgmma;

// Of K's columns behind whole panels: no wider than they must be, if a panel comes before them.
int last_k_row_bytes(int head_dim);
bool has_narrow_k(const Problem& problem);
// Whether the head dim ends halfway through a step of 16 columns.
bool has_half_step(const Problem& problem);
// Whether a row of Q is whole lines of L2, of which no other head has a part where heads lie side by side
// (docs/performance/wgmma/device-memory.md).
bool has_own_lines(const Problem& problem);

// Of all stages of K and V.
int ring_bytes(const Problem& problem, const WgmmaSchedule& schedule);
// As templates/parts/wgmma/layout.cuh lays it out, which asserts that it fits.
int shared_bytes(const Problem& problem, const WgmmaSchedule& schedule);

}  // namespace flashjit::wgmma_forward
