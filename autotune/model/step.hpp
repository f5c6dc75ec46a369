// One step of a tile, in cycles of each unit: what the analytic model (model.cpp) is built on.
#pragma once

#include "flashjit/problem.hpp"
#include "flashjit/target.hpp"
#include "generator/schedule.hpp"

namespace flashjit::autotune {

// What one multiprocessor does in a clock.
struct Machine {
  int capability;
  double clock_ghz;   // under load
  double mma_flops;   // mma.sync, 16-bit in, fp32 sums; multiply and add counted as two
  double fp32_lanes;  // FFMA, and about as many of every other simple instruction
};

const Machine& machine_of(const Target& target);

// One CTA's step over tile_n keys, in cycles of the whole multiprocessor.
struct Step {
  double cycles = 0;        // with the CTAs that share the multiprocessor
  double alone = 0;         // by itself
  double own_keys = 0;      // wgmma: also by itself, in a tile whose keys no other tile reads
  double tile_cycles = 0;   // per tile, besides its steps: Q, the first K, the last O, the launch of the CTA
  double start_cycles = 0;  // per CTA of a persistent kernel: until its first block has come
  double over_fetch = 1;    // how much more comes from memory than is asked for
  int ctas = 1;             // per multiprocessor
  bool balanced = false;    // tiles are handed out longest first
  bool dealt = false;       // tiles are dealt out beforehand, whatever their lengths
};

// The step of a forward pass, of any family; `blocks` are the steps of the longest tile.
Step step_of(const Problem& problem, const Schedule& schedule, const Target& target, const Machine& machine,
             double blocks);

}  // namespace flashjit::autotune
