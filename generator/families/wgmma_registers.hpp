// Registers of family wgmma's forward pass: how they are shared out among warpgroups, what a schedule's
// fragments need, and what compiling showed about the kernels at the limit.
#pragma once

#include <string>

#include "flashjit/problem.hpp"
#include "generator/families/wgmma_panels.hpp"
#include "generator/schedule.hpp"

namespace flashjit::wgmma_forward {

using namespace wgmma;

int steps_of(int columns);                         // of 16 columns, which one product takes
int warpgroups_of(const WgmmaSchedule& schedule);  // that compute
bool is_static(const WgmmaSchedule& schedule);     // whether the order of tiles is
bool has_even_shares(const WgmmaSchedule& schedule);

// Steps of 16 columns of Q that live in registers: none, all, or the first half in whole panels.
int q_register_steps(const Problem& problem, const WgmmaSchedule& schedule);

// Registers per thread, before setmaxnreg moves any.
int registers_at_launch(const WgmmaSchedule& schedule);

// How setmaxnreg splits what the launch allocated: 64K registers over all threads, in steps of eight a
// thread.
struct RegisterSplit {
  int producer = 0;
  int consumer = 0;
};
RegisterSplit registers_of(const WgmmaSchedule& schedule);

// Registers that a thread of a consumer needs.
struct FragmentRegisters {
  int s = 0, p = 0, o = 0, q = 0, other = 0;
  [[nodiscard]] int total() const { return s + p + o + q + other; }
};
FragmentRegisters fragments_of(const Problem& problem, const WgmmaSchedule& schedule);

// The most accumulators that one product may have: it is compiled for the registers that the launch gives
// each thread, before setmaxnreg moves any.
int accumulators_at_most(const WgmmaSchedule& schedule);

// The warpgroups that share the registers, in words: "2 warpgroups in each of 2 CTAs".
std::string consumers(const WgmmaSchedule& schedule);

// Kernels that fit although the count says no: they compile without spills, and are the fastest for their
// head dims.
bool known_to_fit(const Problem& problem, const WgmmaSchedule& schedule);
// Kernels that the count lets pass, and that spill a few bytes all the same.
bool known_to_spill(const Problem& problem, const WgmmaSchedule& schedule);

}  // namespace flashjit::wgmma_forward
