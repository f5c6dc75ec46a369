// cp.async: moving the data of lanes, and telling that it has moved.
#pragma once

#include "emulator/machine/machine.hpp"

namespace flashjit::emulator {

// Moves what these lanes copy.
void move_lanes(Warp& warp, const LaneCopies& copies, u32 lanes);

// These lanes' part is done: the data has moved, and is visible to who knows the clock, a clock of the warp.
void finish_lanes(Warp& warp, LaneCopies& copies, u32 lanes, const u32* clock);

// Forgets the copies that no lane is still to finish.
void forget_finished(Warp& warp);

// A lane_arrival: the lane's copies are done, and its mbarrier hears of it.
void arrive_for_lane(Cluster& cluster, const CopyJob& job);

}  // namespace flashjit::emulator
