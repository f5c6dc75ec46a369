// The search space of each family's forward pass: every schedule worth a thought, in the order that breaks
// ties; legal() has not looked at them.
#pragma once

#include <algorithm>
#include <vector>

#include "flashjit/problem.hpp"
#include "generator/schedule.hpp"

namespace flashjit::autotune {

std::vector<Schedule> simt_space();
std::vector<Schedule> mma_space(const Problem& problem);
std::vector<Schedule> wgmma_space(const Problem& problem);

// A tile's rows, and the warps that have them.
struct Rows {
  int tile_m, warps;
};

// Adds a schedule that is not there yet.
inline void add(std::vector<Schedule>& space, const Schedule& schedule) {
  if (std::find(space.begin(), space.end(), schedule) == space.end()) space.push_back(schedule);
}

}  // namespace flashjit::autotune
