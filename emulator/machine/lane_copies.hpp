// cp.async: moves the data of lanes, and reports when it has been moved.
#pragma once

#include "emulator/machine/machine.hpp"

namespace flashjit::emulator {

// Moves what these lanes copy.
void move_lanes(Warp& warp, const LaneCopies& copies, u32 lanes);

// The copies of these lanes are done: the data has moved, and is visible to agents that know `clock`, a clock
// of the warp.
void finish_lanes(Warp& warp, LaneCopies& copies, u32 lanes, const u32* clock);

// Forgets the copies that all lanes have finished.
void forget_finished(Warp& warp);

// For a lane_arrival: the lane's copies are done, so it arrives at its mbarrier.
void arrive_for_lane(Cluster& cluster, const CopyJob& job);

}  // namespace flashjit::emulator
