#include "generator/families/wgmma_layout.hpp"

#include "generator/families/wgmma_registers.hpp"

namespace flashjit::wgmma_forward {

int last_k_row_bytes(int head_dim) {
  const int rest = head_dim % kPanelColumns;
  if (rest == 0) return 0;
  if (head_dim < kPanelColumns || rest > 32) return kRowBytes;
  return rest <= 16 ? 32 : 64;
}

bool has_narrow_k(const Problem& problem) {
  const int bytes = last_k_row_bytes(problem.head_dim);
  return bytes > 0 && bytes < kRowBytes;
}

bool has_half_step(const Problem& problem) {
  return problem.head_dim % 16 != 0;
}

bool has_own_lines(const Problem& problem) {
  return problem.head_dim % kPanelColumns == 0;
}

int ring_bytes(const Problem& problem, const WgmmaSchedule& schedule) {
  const int k = problem.head_dim / kPanelColumns * kRowBytes + last_k_row_bytes(problem.head_dim);
  const int k_stage = (schedule.tile_n * k + 1023) / 1024 * 1024;  // a swizzle repeats after at most 1024
  const int v_stage = schedule.tile_n * panels_of(problem.value_dim()) * kRowBytes;
  return schedule.stages * (k_stage + v_stage);
}

int shared_bytes(const Problem& problem, const WgmmaSchedule& schedule) {
  const int warpgroups = warpgroups_of(schedule);
  const int q = panels_of(problem.head_dim) * kRowBytes;
  const int v = panels_of(problem.value_dim()) * kRowBytes;
  const int rings = ring_bytes(problem, schedule);
  if (schedule.splits > 1) {
    const int sums = 8 * schedule.splits * schedule.tile_m;
    return warpgroups * 64 * q + rings + 8 * (4 * schedule.stages + warpgroups) + sums;
  }
  const int o = schedule.o_passes == 0 ? 0 : v / schedule.o_passes;
  const int barriers = 8 * (4 * schedule.stages + 2 * warpgroups) + (is_static(schedule) ? 0 : kTicketBytes);
  return warpgroups * 64 * (q + o) + rings + barriers;
}

}  // namespace flashjit::wgmma_forward
