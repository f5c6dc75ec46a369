// Cycles of each unit for one step of a tile, family by family, and how well they overlap. Figures are public
// ones (CUDA C++ Programming Guide, throughput of native arithmetic instructions; vendors' white papers) and,
// for Hopper, measured ones (docs/performance/wgmma.md).
#include "autotune/model/step.hpp"

#include <array>

#include "autotune/model/families.hpp"

namespace flashjit::autotune {
namespace {

constexpr auto kMachines = std::to_array<Machine>({
    {75, 1.5, 512, 64},
    {80, 1.4, 2048, 64},
    {86, 1.7, 512, 128},
    {87, 1.3, 1024, 128},
    {88, 1.3, 1024, 128},
    {89, 2.5, 512, 128},
    {90, 1.7, 2560, 128},  // mma.sync reaches 62 % of what wgmma does
    {100, 1.8, 2048, 128},
    {103, 1.8, 2048, 128},
    {110, 1.5, 1024, 128},
    {120, 2.4, 512, 128},
    {121, 2.4, 512, 128},
});

}  // namespace

const Machine& machine_of(const Target& target) {
  const Machine* best = &kMachines.front();
  for (const Machine& machine : kMachines) {
    if (machine.capability <= target.capability) best = &machine;
  }
  return *best;
}

Step step_of(const Problem& p, const Schedule& schedule, const Target& target, const Machine& machine,
             double blocks) {
  if (const auto* simt = std::get_if<SimtSchedule>(&schedule)) return simt_step(p, *simt, target, machine);
  if (const auto* mma = std::get_if<MmaSchedule>(&schedule)) return mma_step(p, *mma, target, machine);
  const auto& wgmma = std::get<WgmmaSchedule>(schedule);
  return p.dtype == DType::fp32 ? wgmma_fp32_step(p, wgmma) : wgmma_step(p, wgmma, blocks);
}

}  // namespace flashjit::autotune
