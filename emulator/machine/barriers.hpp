// Barriers: the sixteen named ones of a CTA, mbarriers in shared memory, and the cluster's.
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

// barrier.sync and bar.arrive. Threads are counted, 32 for each warp.
struct NamedBarrier {
  u32 arrived = 0;
  u32 expected = 0;        // of those who arrived so far
  u32 warps = 0;           // who arrived: a bit for each
  std::vector<u32> clock;  // what the ones that arrived had seen
  u32 count_true = 0;      // bar.red: threads whose predicate holds …
  u32 count_all = 0;       // … of those that have arrived
  u32 last_result_true = 0, last_result_threads = 0;
};

// One warp arrives; waits if `waits`. Returns true if that completed the barrier (and released everybody
// else).
bool arrive_at(Warp& warp, const Ins& ins, u32 number, u32 expected, bool waits, u32 true_lanes);

// The 64 bits of an mbarrier: phase, pending arrivals, expected arrivals, pending bytes. Kept in the kernel's
// own shared memory, so that whoever overwrites one is found out.
struct Mbarrier {
  u32 phase = 0;
  u32 pending = 0;
  u32 expected = 0;
  i64 bytes = 0;  // may be negative: a copy may complete before it is announced

  static constexpr u32 kMaxCount = (1u << 20) - 1;
  static Mbarrier load(const Cta& cta, u32 address);
  void store(Cta& cta, u32 address) const;
};

// What passes through mbarriers besides data: the clocks of all that arrived in finished phases and in the
// open one.
class MbarrierClocks {
 public:
  void clear() { all_.clear(); }
  void join(const Cta& cta, u32 address, const u32* clock, u32 width);  // into the open phase
  void finish_phase(const Cta& cta, u32 address);  // the open phase's clocks become visible
  // Returns what the barrier knew of `agent`.
  u32 acquire(const Cta& cta, u32 address, u32* clock, u32 agent) const;

 private:
  struct Clocks {
    std::vector<u32> open, visible;
  };
  std::map<std::pair<const Cta*, u32>, Clocks> all_;
};

// `count` arrivals and `bytes` more to expect (negative: that have come). Ends the phase if nothing is left.
// Returns a complaint, or null if all is well.
const char* mbarrier_arrive(Cluster& cluster, Cta& cta, u32 address, u32 count, i64 bytes);
inline bool mbarrier_passed(const Mbarrier& barrier, u32 parity) {
  return barrier.phase != (parity & 1);
}

// The cluster's barrier; who has arrived stands in the warps.
struct ClusterBarrier {
  std::vector<u32> clock, visible;  // of who arrived; as it was when the last phase ended
};
// The clocks that an arrival makes known: all that the warp knows, or, if it is relaxed, what it knew at its
// last fence (null if it had none).
u32* told_by(Warp& warp, bool relaxed);
// `told`: told_by's.
void arrive_at_cluster(Warp& warp, const Ins& ins, u32 lanes, const u32* told);
// Ends the phase if all threads that have not exited have arrived: to be asked when one arrives or exits.
void settle_cluster_barrier(Cluster& cluster);

}  // namespace flashjit::emulator
