// Barriers: the sixteen named ones of a CTA, mbarriers in shared memory, and the cluster's barrier.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "emulator/program.hpp"

namespace flashjit::emulator {

struct Warp;
struct Cta;
struct Cluster;

// barrier.sync and bar.arrive. They count threads, 32 for each warp.
struct NamedBarrier {
  u32 arrived = 0;
  u32 expected = 0;        // as the warps that arrived so far have said
  bool for_all = false;    // an instruction had no count: for all threads that have not exited
  u32 warps = 0;           // which warps have arrived: one bit each
  std::vector<u32> clock;  // what the arrived warps know
  u32 count_true = 0;      // bar.red: threads whose predicate holds …
  u32 count_all = 0;       // … of those that have arrived
};

// What an instruction says of the barrier: how many threads it is for, and whether these are the CTA's.
struct BarrierCount {
  u32 threads = 0;
  bool for_all = false;
};
// One warp arrives, and waits if `waits`. Returns true if that completed the barrier (and released all
// waiting warps).
bool arrive_at(Warp& warp, const Ins& ins, u32 number, BarrierCount count, bool waits, u32 true_lanes);
// Completes the barriers that waited for nobody but warps that have exited. Must be called when one exits.
void settle_barriers(Cta& cta);

// The 64 bits of an mbarrier: phase, pending arrivals, expected arrivals, whether a wait is missing, pending
// bytes. They are in the kernel's own shared memory, so that overwriting an mbarrier is noticed.
struct Mbarrier {
  u32 phase = 0;
  u32 pending = 0;
  u32 expected = 0;
  bool unseen = false;  // the phase before has ended, and no wait has passed since
  i64 bytes = 0;        // may be negative: a copy may complete before it is announced

  static constexpr u32 kMaxCount = (1u << 20) - 1;
  static Mbarrier load(const Cta& cta, u32 address);
  void store(Cta& cta, u32 address) const;
};

// What passes through mbarriers besides data: the clocks of everything that arrived in finished phases and in
// the open one.
class MbarrierClocks {
 public:
  void clear() { all_.clear(); }
  void join(const Cta& cta, u32 address, const u32* clock, u32 width);  // into the open phase
  void finish_phase(const Cta& cta, u32 address);  // makes the clocks of the open phase visible
  // Adds the visible clocks to `clock`. Returns what the barrier knew of `agent`.
  u32 acquire(const Cta& cta, u32 address, u32* clock, u32 agent) const;

 private:
  struct Clocks {
    std::vector<u32> open, visible;
  };
  std::map<std::pair<const Cta*, u32>, Clocks> all_;
};

// Makes `count` arrivals and expects `bytes` more (negative: that many have come). Ends the phase if nothing
// is left to wait for. Returns what is wrong, or null.
const char* mbarrier_arrive(Cluster& cluster, Cta& cta, u32 address, u32 count, i64 bytes);
// Before lanes arrive: at least one test_wait or try_wait must have returned true for a phase before anyone
// arrives in the next (PTX ISA, "Phase of the mbarrier object"). Bytes may come before.
void check_seen(Warp& warp, const Ins& ins, u32 lanes, Cta& cta, u32 address);
inline bool mbarrier_passed(const Mbarrier& barrier, u32 parity) {
  return barrier.phase != (parity & 1);
}

// The cluster's barrier. Each warp notes which of its lanes have arrived.
struct ClusterBarrier {
  std::vector<u32> clock, visible;  // of the arrived warps; of those when the last phase ended
};
// The clocks that an arrival makes known: all that the warp knows or, for a relaxed arrival, what it knew at
// its last fence (null if it had no fence).
u32* told_by(Warp& warp, bool relaxed);
// `told`: the result of told_by.
void arrive_at_cluster(Warp& warp, const Ins& ins, u32 lanes, const u32* told);
// Ends the phase if all threads that have not exited have arrived. Must be called when a thread arrives or
// exits.
void settle_cluster_barrier(Cluster& cluster);

}  // namespace flashjit::emulator
