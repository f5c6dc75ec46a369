// One queue for everything that is asynchronous: cp.async, TMA, bulk copies and reductions, st.async.
//
// A job may run at any time between its issue and the program's wait. An adversary chooses by seed: at once,
// as late as possible, at any step, the latest first, or at once except for those that a quarter of the
// mbarriers wait for. A correct program cannot tell the difference.
#pragma once

#include <deque>
#include <vector>

#include "emulator/program.hpp"

namespace flashjit::emulator {

struct Warp;
struct Cta;
struct Cluster;

enum class Reduction : u8 { none, add, min, max, band, bor, bxor, inc, dec };
enum class Element : u8 { unsigned32, signed32, unsigned64, signed64, f32, f64, f16, bf16, bits32, bits64 };

// A copy by TMA or the bulk engine, what st.async stores, or a lane's arrival once its cp.async are done.
struct CopyJob {
  enum class Kind : u8 {
    tensor_load,
    tensor_store,
    bulk_load,
    bulk_store,
    bulk_shared,
    lane_store,
    lane_arrival
  };
  Kind kind = Kind::tensor_load;
  const Ins* ins = nullptr;
  u32 agent = 0;  // the issuer
  u32 lane = 0;
  const struct EncodedMap* map = nullptr;
  i32 coordinates[5] = {};
  u64 global = 0;  // of a bulk copy
  u64 before = 0;  // lane_arrival: the cp.async with lower numbers
  u32 bytes = 0;
  Cta* cta = nullptr;  // the CTA of the shared side (of the source, for bulk_shared)
  u32 shared = 0;
  Cta* to_cta = nullptr;  // of bulk_shared
  u32 to_shared = 0;
  Cta* barrier_cta = nullptr;  // where complete_tx goes
  u32 barrier = 0;
  u16 multicast = 0;  // CTAs of the cluster by rank; 0: only `cta`
  int group = 0;      // bulk group of stores, counted for each lane
  Reduction reduction = Reduction::none;
  Element element = Element::f32;
  std::vector<u32> clock;       // of the issuing warp
  std::vector<std::byte> read;  // what a store has read, or st.async was given, and has yet to be written

  // Whether it writes global memory; all other jobs complete on an mbarrier.
  [[nodiscard]] bool stores() const { return kind == Kind::tensor_store || kind == Kind::bulk_store; }
};

// The lanes of one cp.async instruction.
struct LaneCopies {
  const Ins* ins = nullptr;
  u64 number = 0;     // which of the warp's cp.async this is
  u32 lanes = 0;      // lanes that have not waited for it
  u32 size = 0;       // 4, 8 or 16
  bool done = false;  // the data has been moved
  u32 to[kLanes];
  u64 from[kLanes];
  u8 bytes[kLanes];  // how many are copied; the rest of size is zero
};

// What some lanes of a warp have committed together.
struct CopyGroup {
  u32 lanes = 0;
  std::vector<LaneCopies> copies;
};

// A warp's cp.async: those issued but in no group yet, and the groups, oldest first.
struct AsyncCopies {
  u64 issued = 0;
  std::vector<LaneCopies> open;
  std::deque<CopyGroup> groups;
};

class AsyncQueue {
 public:
  enum class Policy : u8 { early, late, random, reversed, partial };
  void reset(Policy policy, u32 late_quarter);
  [[nodiscard]] Policy policy() const { return policy_; }

  void issue(Cluster& cluster, CopyJob job);
  // A step at which jobs may run.
  void step(Cluster& cluster);
  // No warp can run, so one job must. False if no job is left.
  bool advance(Cluster& cluster);
  // cp.async.bulk.wait_group: runs the stores in all groups of these lanes, except each lane's last `kept`
  // groups. With .read, they only have to read their sources.
  void wait_bulk(Cluster& cluster, const Warp& warp, u32 lanes, int kept, bool read_only);
  [[nodiscard]] bool has_store_of(u32 agent) const;
  // Whether a copy is on its way to this CTA's shared memory, or from it to another's.
  [[nodiscard]] bool moves_for(const Cluster& cluster, const Cta& cta) const;

 private:
  void run(Cluster& cluster, std::size_t index);
  [[nodiscard]] bool is_late(const CopyJob& job) const;

  std::vector<CopyJob> jobs_;
  Policy policy_ = Policy::random;
  u32 late_quarter_ = 0;  // which quarter of the mbarriers is late, under Policy::partial
};

// Does what the job says (async_copy.cpp). A store must have been read first.
void perform(Cluster& cluster, const CopyJob& job);
void read_source(Cluster& cluster, CopyJob& job);
// At the issue: checks maps and bounds, and marks the bytes as in flight.
void announce(Cluster& cluster, const CopyJob& job);

}  // namespace flashjit::emulator
