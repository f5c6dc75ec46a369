#include "emulator/machine/deadlock.hpp"

#include <fmt/format.h>

#include <bit>
#include <string>

namespace flashjit::emulator {
namespace {

// A warp that waits at a barrier is past the instruction; other waiting warps execute theirs again.
u32 waiting_at(const Warp& warp) {
  const bool past = warp.wait == Wait::named_barrier || warp.wait == Wait::cluster_barrier;
  return past && warp.pc > 0 ? warp.pc - 1 : warp.pc;
}

int arrived_at(const Cluster& cluster) {
  int threads = 0;
  for (const Cta& cta : cluster.ctas) {
    for (const Warp& warp : cta.warps) threads += std::popcount(warp.cluster_arrived);
  }
  return threads;
}

std::string describe(const Cta& cta, const Warp& warp) {
  switch (warp.wait) {
    case Wait::named_barrier: {
      const NamedBarrier& barrier = cta.barriers[warp.wait_address];
      return fmt::format("at barrier {}, where {} of {} threads arrived", warp.wait_address, barrier.arrived,
                         barrier.expected);
    }
    case Wait::mbarrier: {
      const Mbarrier barrier = Mbarrier::load(*warp.wait_cta, warp.wait_address);
      return fmt::format(
          "for parity {} of the mbarrier at offset {}{}: it is in phase {}, {} of {} arrivals and {} bytes "
          "are missing",
          warp.wait_parity & 1, warp.wait_address - kSharedBase,
          warp.wait_cta == &cta ? "" : fmt::format(" of CTA {}", warp.wait_cta->rank), barrier.phase,
          barrier.pending, barrier.expected, barrier.bytes);
    }
    case Wait::warpgroup:
      return "for its warpgroup: another warp of the four has not issued the same wgmma groups";
    case Wait::registers:
      return fmt::format("for {} registers a thread: {} are its own, and the CTA's pool has {} in all",
                         warp.wanted_registers, warp.registers, cta.pool);
    case Wait::cluster_barrier:
      return fmt::format("at the cluster's barrier, where {} threads arrived", arrived_at(*cta.cluster));
    default:
      return "for nothing";
  }
}

}  // namespace

void report_deadlock(const Cluster& cluster) {
  const LaunchContext& launch = *cluster.launch;
  std::string text = "nobody can run any more:";
  const Warp* first = &cluster.ctas.front().warps.front();  // the first that waits
  for (const Cta& cta : cluster.ctas) {
    u32 done = 0;
    for (const Warp& warp : cta.warps) {
      if (warp.wait == Wait::finished) {
        ++done;
        continue;
      }
      if (first->wait == Wait::finished) first = &warp;
      text += fmt::format("\n    {}warp {} waits {}, at {}",
                          launch.cluster > 1 ? fmt::format("CTA {} of the cluster, ", cta.rank) : "",
                          warp.index, describe(cta, warp), launch.report->place(waiting_at(warp)));
    }
    if (done != 0) text += fmt::format("\n    {} of {} warps have exited", done, cta.warps.size());
  }
  stop(*first, launch.program->code[waiting_at(*first)], FindingKind::deadlock, first->active, text);
}

}  // namespace flashjit::emulator
