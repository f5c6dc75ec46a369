// What a CTA of family wgmma's forward pass keeps in shared memory.
#pragma once

#include "flashjit/problem.hpp"
#include "generator/families/wgmma_panels.hpp"
#include "generator/schedule.hpp"

namespace flashjit::wgmma_forward {

using namespace wgmma;

// Bytes of a row of K's last panel, where the head dim ends inside it; else 0. If whole panels come before
// it, the row is no wider than it must be.
int last_k_row_bytes(int head_dim);
bool has_narrow_k(const Problem& problem);
// Whether the head dim ends halfway through a step of 16 columns.
bool has_half_step(const Problem& problem);
// Whether a row of Q is whole lines of L2, so that no line holds a part of another head where heads lie side
// by side (docs/performance/wgmma/device-memory.md).
bool has_own_lines(const Problem& problem);

// Bytes of all stages of K and V.
int ring_bytes(const Problem& problem, const WgmmaSchedule& schedule);
// Bytes of what templates/parts/wgmma/layout.cuh lays out, which asserts that it fits.
int shared_bytes(const Problem& problem, const WgmmaSchedule& schedule);

}  // namespace flashjit::wgmma_forward
