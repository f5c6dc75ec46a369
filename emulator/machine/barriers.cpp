#include "emulator/machine/barriers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "emulator/machine/machine.hpp"

namespace flashjit::emulator {
namespace {

void join(std::vector<u32>& into, const u32* clock, u32 width) {
  into.resize(width, 0);
  for (u32 k = 0; k < width; ++k) into[k] = std::max(into[k], clock[k]);
}
void acquire(const std::vector<u32>& from, u32* clock) {
  for (std::size_t k = 0; k < from.size(); ++k) clock[k] = std::max(clock[k], from[k]);
}

bool is_complete(const Cta& cta, const NamedBarrier& barrier) {
  if (!barrier.for_all) return barrier.arrived >= barrier.expected;
  u32 exited = 0;
  for (const Warp& warp : cta.warps) {
    if (warp.wait == Wait::finished && (barrier.warps >> warp.index & 1) == 0) exited += kLanes;
  }
  return barrier.arrived + exited >= barrier.expected;
}

// What a warp that waited takes along. It may run only after the barrier's next use, so this is its own.
void leave(const NamedBarrier& barrier, Warp& warp) {
  acquire(barrier.clock, warp.clock);
  warp.votes_true = barrier.count_true;
  warp.votes_all = barrier.count_all;
}

void complete(Cta& cta, u32 number) {
  NamedBarrier& barrier = cta.barriers[number];
  for (Warp& warp : cta.warps) {
    if (warp.wait != Wait::named_barrier || warp.wait_address != number) continue;
    warp.wait = Wait::none;
    leave(barrier, warp);
  }
  barrier.count_true = barrier.count_all = 0;
  barrier.arrived = 0;
  barrier.for_all = false;
  barrier.clock.assign(cta.cluster->clock_width, 0);
}

}  // namespace

bool arrive_at(Warp& warp, const Ins& ins, u32 number, BarrierCount count, bool waits, u32 true_lanes) {
  Cta& cta = *warp.cta;
  NamedBarrier& barrier = cta.barriers[number];
  const u32 expected = count.threads;
  if (barrier.arrived != 0 && barrier.expected != expected) {
    finding(warp, ins, FindingKind::barrier, warp.active,
            fmt::format("barrier {} is used for {} threads here and for {} by those who wait", number,
                        expected, barrier.expected));
  }
  if (expected % kLanes != 0 || expected == 0) {
    stop(warp, ins, FindingKind::barrier, warp.active,
         fmt::format("barrier {} for {} threads; it must be a multiple of 32", number, expected));
  }
  if (barrier.arrived == 0) barrier.warps = 0;
  if ((barrier.warps >> warp.index & 1) != 0) {
    finding(warp, ins, FindingKind::barrier, warp.active,
            fmt::format("arrives at barrier {} again before it is complete; it is for {} threads, each once",
                        number, expected));
  }
  warp.held.tell(warp, ins);
  barrier.warps |= 1u << warp.index;
  barrier.expected = expected;
  barrier.for_all |= count.for_all;
  barrier.arrived += kLanes;
  barrier.count_true += static_cast<u32>(std::popcount(true_lanes));
  barrier.count_all += static_cast<u32>(std::popcount(warp.active));
  join(barrier.clock, warp.clock, cta.cluster->clock_width);
  warp.release();
  if (waits) warp.meet();
  if (!is_complete(cta, barrier)) {
    if (waits) {
      warp.wait = Wait::named_barrier;
      warp.wait_address = number;
      warp.yield();
      if (cta.cluster->counters != nullptr) ++cta.cluster->counters->barrier_waits;
    }
    return false;
  }
  if (waits) leave(barrier, warp);
  complete(cta, number);
  return true;
}

void settle_barriers(Cta& cta) {
  for (u32 number = 0; number < std::size(cta.barriers); ++number) {
    const NamedBarrier& barrier = cta.barriers[number];
    if (barrier.arrived != 0 && is_complete(cta, barrier)) complete(cta, number);
  }
}

Mbarrier Mbarrier::load(const Cta& cta, u32 address) {
  u64 word;
  std::memcpy(&word, cta.shared + address, sizeof word);
  return {.phase = static_cast<u32>(word & 1),
          .pending = static_cast<u32>(word >> 1) & kMaxCount,
          .expected = static_cast<u32>(word >> 21) & kMaxCount,
          .unseen = (word >> 41 & 1) != 0,
          .bytes = static_cast<i64>(word) >> 42};
}

void Mbarrier::store(Cta& cta, u32 address) const {
  const u64 word = u64{phase & 1} | u64{pending & kMaxCount} << 1 | u64{expected & kMaxCount} << 21 |
                   u64{unseen} << 41 | static_cast<u64>(bytes) << 42;
  std::memcpy(cta.shared + address, &word, sizeof word);
}

const char* mbarrier_arrive(Cluster& cluster, Cta& cta, u32 address, u32 count, i64 bytes) {
  Mbarrier barrier = Mbarrier::load(cta, address);
  if (barrier.expected == 0) return "the mbarrier is not initialised, or was overwritten";
  if (barrier.pending < count) return "more arrivals than the mbarrier's phase expects";
  barrier.pending -= count;
  barrier.bytes += bytes;
  if (std::abs(barrier.bytes) >= 1 << 20) return "the mbarrier's pending bytes leave their range of 2^20 - 1";
  if (barrier.pending == 0 && barrier.bytes == 0) {
    barrier.phase ^= 1;
    barrier.pending = barrier.expected;
    barrier.unseen = true;
    cluster.mbarriers.finish_phase(cta, address);
  }
  barrier.store(cta, address);
  return nullptr;
}

void check_seen(Warp& warp, const Ins& ins, u32 lanes, Cta& cta, u32 address) {
  Mbarrier barrier = Mbarrier::load(cta, address);
  if (!barrier.unseen) return;
  finding(warp, ins, FindingKind::barrier, lanes,
          fmt::format("arrives in phase {} of the mbarrier at offset {}{}, but no wait has seen phase {} end",
                      barrier.phase, address - kSharedBase,
                      &cta == warp.cta ? "" : fmt::format(" of CTA {}", cta.rank), barrier.phase ^ 1));
  barrier.unseen = false;  // once is enough
  barrier.store(cta, address);
}

void MbarrierClocks::join(const Cta& cta, u32 address, const u32* clock, u32 width) {
  flashjit::emulator::join(all_[{&cta, address}].open, clock, width);
}

void MbarrierClocks::finish_phase(const Cta& cta, u32 address) {
  Clocks& clocks = all_[{&cta, address}];
  clocks.visible = clocks.open;
}

u32 MbarrierClocks::acquire(const Cta& cta, u32 address, u32* clock, u32 agent) const {
  auto found = all_.find({&cta, address});
  if (found == all_.end() || found->second.visible.empty()) return 0;
  flashjit::emulator::acquire(found->second.visible, clock);
  return found->second.visible[agent];
}

u32* told_by(Warp& warp, bool relaxed) {
  if (!relaxed) return warp.clock;
  return warp.fence_clock.empty() ? nullptr : warp.fence_clock.data();
}

void arrive_at_cluster(Warp& warp, const Ins& ins, u32 lanes, const u32* told) {
  Cluster& cluster = *warp.cta->cluster;
  if (const u32 again = warp.cluster_arrived & lanes; checking(warp) && again != 0) {
    finding(warp, ins, FindingKind::barrier, again,
            "arrives at the cluster's barrier again before it is complete");
  }
  warp.cluster_arrived |= lanes;
  warp.cluster_owed |= lanes;
  if (told != nullptr) join(cluster.barrier.clock, told, cluster.clock_width);
  warp.release();
  settle_cluster_barrier(cluster);
}

void settle_cluster_barrier(Cluster& cluster) {
  bool any = false;
  for (const Cta& cta : cluster.ctas) {
    for (const Warp& warp : cta.warps) {
      if ((warp.everyone() & ~warp.cluster_arrived) != 0) return;
      any |= warp.cluster_arrived != 0;
    }
  }
  if (!any) return;
  ClusterBarrier& barrier = cluster.barrier;
  barrier.visible = barrier.clock;
  for (Cta& cta : cluster.ctas) {
    for (Warp& warp : cta.warps) {
      warp.cluster_arrived = 0;
      if (warp.wait == Wait::cluster_barrier) {
        warp.wait = Wait::none;
        acquire(barrier.clock, warp.clock);
      }
    }
  }
}

}  // namespace flashjit::emulator
