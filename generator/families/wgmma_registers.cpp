#include "generator/families/wgmma_registers.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace flashjit::wgmma_forward {
namespace {

constexpr int kUnit = 8;  // a thread is given registers in multiples of this

// The textbook's softmax looks for each block's maxima; a loop without a mask otherwise looks for none.
// Beside wide values, three warpgroups with two products in flight have no registers to spare for it.
constexpr int kMaximaRegisters = 8;

// Registers that a consumer needs beside its fragments: with fewer, ptxas spills. Found by compiling 658
// kernels at the limit (docs/performance/wgmma/registers.md, "Registers"). It needs more where tiles come off
// a counter, since a consumer keeps the next tile's number and place.
int other_registers(const Problem& problem, const WgmmaSchedule& schedule) {
  switch (warpgroups_of(schedule)) {
    case 1:
      return is_static(schedule) ? 32 : 36;
    case 2:
      if (schedule.min_ctas > 1) return 28;  // none of 400 kernels of the search space spills
      return schedule.q_in_regs == 2 && panels_of(problem.head_dim) > 3 ? 36 : 32;
    case 3:
      if (panels_of(problem.value_dim()) <= 2 && schedule.q_in_regs < 2) return 28;
      return is_static(schedule) ? 32 : 44;
    default:
      return 28;
  }
}

}  // namespace

int warpgroups_of(const WgmmaSchedule& schedule) {
  return schedule.tile_m / 64;
}
int steps_of(int columns) {
  return (columns + 15) / 16;
}

int q_register_steps(const Problem& problem, const WgmmaSchedule& schedule) {
  if (schedule.q_in_regs == 2) return panels_of(problem.head_dim) / 2 * 4;
  return schedule.q_in_regs * steps_of(problem.head_dim);
}

bool is_static(const WgmmaSchedule& schedule) {
  return schedule.persistent != 2;
}

bool has_even_shares(const WgmmaSchedule& schedule) {
  return schedule.persistent == 3;
}

int registers_at_launch(const WgmmaSchedule& schedule) {
  constexpr int kRegisters = 65536;
  const int threads = 128 * (warpgroups_of(schedule) + 1) * std::max(1, schedule.min_ctas);
  return kRegisters / threads / kUnit * kUnit;
}

RegisterSplit registers_of(const WgmmaSchedule& schedule) {
  // With 24 registers the producer would spill where it has tickets or a cluster's loads.
  const bool plain = is_static(schedule) && schedule.cluster == 1;
  if (schedule.min_ctas > 1) {  // the producer gets what does not divide among consumers
    const int groups = warpgroups_of(schedule);
    const int all = registers_at_launch(schedule) * (groups + 1);
    const int consumer = (all - (plain ? 24 : 32)) / groups / kUnit * kUnit;
    return {all - groups * consumer, consumer};
  }
  switch (warpgroups_of(schedule)) {
    case 1:
      return {56, 248};
    case 2:
      return plain ? RegisterSplit{24, 240} : RegisterSplit{40, 232};
    case 3:
      return {32, 160};
    default:
      return {32, 112};  // 640 threads are launched with 96 registers each: 5 * 96 = 32 + 4 * 112
  }
}

int accumulators_at_most(const WgmmaSchedule& schedule) {
  constexpr int kMost = 255;
  constexpr int kBeside = 30;  // what ptxas asks for beside a product's accumulators (its error C7602)
  return std::max(0, std::min(registers_at_launch(schedule), kMost) - kBeside);
}

std::string consumers(const WgmmaSchedule& schedule) {
  const int warpgroups = warpgroups_of(schedule);
  return fmt::format("{} warpgroup{}{}", warpgroups, warpgroups == 1 ? "" : "s",
                     schedule.min_ctas > 1 ? fmt::format(" in each of {} CTAs", schedule.min_ctas) : "");
}

bool known_to_fit(const Problem& problem, const WgmmaSchedule& schedule) {
  const int dim = problem.head_dim;
  if (problem.value_dim() != dim || !problem.causal) return false;
  if (dim == 144) return schedule.tile_m == 192 && schedule.tile_n == 64 && schedule.q_in_regs == 0;
  const WgmmaSchedule textbook{
      .tile_m = 192, .tile_n = 64, .q_in_regs = 0, .o_passes = 3, .optimistic = 0, .persistent = 2};
  return (dim == 152 || dim == 160) && schedule == textbook;
}

bool known_to_spill(const Problem& problem, const WgmmaSchedule& schedule) {
  const auto tile = [&](int m, int n) { return schedule.tile_m == m && schedule.tile_n == n; };
  const int dim = problem.head_dim;
  const bool even = has_even_shares(schedule), pairs = schedule.cluster > 1;
  if (dim == 80 && problem.value_dim() == 160) return tile(128, 128) && pairs && !problem.causal;
  if (problem.value_dim() == 48 && dim >= 120) return tile(256, 80) && !problem.causal;
  if (dim == 72 && problem.value_dim() == 240) return tile(128, 80) && pairs && problem.dtype == DType::fp16;
  if (problem.value_dim() != dim) return false;
  if (even && dim == 120 && tile(192, 96)) return pairs || problem.causal || problem.dtype == DType::fp16;
  if (dim >= 48 && dim <= 64 && tile(256, 64) && schedule.splits == 4) return true;
  if (!problem.causal) {
    return (dim == 32 && tile(192, 144)) ||
           (dim == 144 && tile(192, 64) && even && problem.dtype == DType::fp16) ||
           ((dim == 136 || dim == 152) && tile(192, 64) && even && pairs) ||
           (dim == 192 && tile(128, 64) && !even && pairs && schedule.q_in_regs == 1);
  }
  return ((dim == 72 || dim == 80) && tile(256, 48) && schedule.splits == 2) ||
         (dim == 144 && tile(192, 64) && schedule.ping_pong == 0) ||
         (dim == 192 && tile(128, 96) && schedule.o_passes == 0) ||
         (dim >= 120 && dim <= 160 && tile(192, 64) && even) ||
         (dim == 160 && tile(192, 48) && !is_static(schedule));
}

FragmentRegisters fragments_of(const Problem& problem, const WgmmaSchedule& schedule) {
  // Recomputed scores (optimistic) are needed beside P, which was made of those before.
  const bool apart = schedule.overlap == 1 || schedule.optimistic == 1;
  const bool maxima = schedule.overlap == 1 && schedule.optimistic == 0 && !problem.causal &&
                      warpgroups_of(schedule) > 2 && panels_of(problem.value_dim()) > 2;
  return {.s = schedule.tile_n / 2,
          .p = apart ? schedule.tile_n / 4 : 0,  // else in the registers of s
          .o = problem.value_dim() / 2,
          .q = 4 * q_register_steps(problem, schedule),
          .other = other_registers(problem, schedule) + (maxima ? kMaximaRegisters : 0)};
}

}  // namespace flashjit::wgmma_forward
