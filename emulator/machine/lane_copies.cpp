#include "emulator/machine/lane_copies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace flashjit::emulator {

void move_lanes(Warp& warp, const LaneCopies& copies, u32 lanes) {
  ++warp.cta->matrix_epoch;
  for (u32 m = lanes; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    std::byte* to = warp.cta->shared + copies.to[l];
    if (copies.bytes[l] == 16) {
      std::memcpy(to, at_address(copies.from[l]), 16);
    } else {
      std::memset(to, 0, copies.size);
      if (copies.bytes[l] != 0) std::memcpy(to, at_address(copies.from[l]), copies.bytes[l]);
    }
  }
}

void finish_lanes(Warp& warp, LaneCopies& copies, u32 lanes, const u32* clock) {
  lanes &= copies.lanes;
  if (lanes == 0) return;
  copies.lanes &= ~lanes;
  if (!copies.done) move_lanes(warp, copies, lanes);
  if (!checking(warp)) return;
  for (u32 m = lanes; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const Agent agent{warp.agent, clock, static_cast<u32>(l), warp.met};
    warp.cta->state.finish_write(agent, Access::generic, copies.to[l], copies.size);
  }
}

void forget_finished(Warp& warp) {
  const auto is_finished = [](const LaneCopies& copies) { return copies.lanes == 0; };
  std::erase_if(warp.copies.open, is_finished);
  // Only the oldest groups: a lane that waits counts all younger ones, whether it copies in them or not.
  std::deque<CopyGroup>& groups = warp.copies.groups;
  while (!groups.empty() && std::ranges::all_of(groups.front().copies, is_finished)) groups.pop_front();
}

void arrive_for_lane(Cluster& cluster, const CopyJob& job) {
  Warp& warp = cluster.warp_of(job.agent);
  const auto finish = [&](std::vector<LaneCopies>& all) {
    for (LaneCopies& copies : all) {
      if (copies.number < job.before) finish_lanes(warp, copies, 1u << job.lane, job.clock.data());
    }
  };
  for (CopyGroup& group : warp.copies.groups) finish(group.copies);
  finish(warp.copies.open);
  forget_finished(warp);
  Cta& cta = *job.barrier_cta;
  if (ordering(warp)) cluster.mbarriers.join(cta, job.barrier, job.clock.data(), cluster.clock_width);
  if (checking(warp)) check_seen(warp, *job.ins, 1u << job.lane, cta, job.barrier);
  if (const char* wrong = mbarrier_arrive(cluster, cta, job.barrier, 1, 0); wrong != nullptr) {
    stop(warp, *job.ins, FindingKind::barrier, 1u << job.lane,
         fmt::format("{} (offset {})", wrong, job.barrier - kSharedBase));
  }
}

}  // namespace flashjit::emulator
