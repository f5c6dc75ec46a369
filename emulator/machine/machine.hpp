// The state of a running launch (warps, CTAs, clusters), and what handlers need of it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "emulator/machine/async_queue.hpp"
#include "emulator/machine/barriers.hpp"
#include "emulator/machine/global_memory.hpp"
#include "emulator/machine/late_loads.hpp"
#include "emulator/machine/shared_state.hpp"
#include "emulator/profile.hpp"
#include "emulator/program.hpp"
#include "emulator/report.hpp"

namespace flashjit::emulator {

struct Cta;
struct Cluster;

// What all threads of a launch share.
struct LaunchContext {
  const Program* program = nullptr;
  GlobalMemory* memory = nullptr;
  Report* report = nullptr;
  u32 grid[3] = {1, 1, 1};
  u32 block[3] = {1, 1, 1};
  u32 cluster = 1;       // CTAs, along x
  u32 shared_bytes = 0;  // dynamic
  const std::byte* params = nullptr;
  u64 seed = 0;
  Checks checks = Checks::all;
  bool counts = false;
  u32 sm_count = 1;
  u64 most_steps = 0;  // the most instructions of one cluster
  // How many turns the warps of all clusters have had, except turns that only polled a word; and how many
  // threads are at work.
  std::atomic<u64> turns{0};
  std::atomic<u32> at_work{0};
  std::atomic<bool> stopped{false};  // a finding or an error in one cluster stops all
};

// Lanes that wait for the others at a rejoin point.
struct Divergence {
  u32 pc;
  u32 rejoin;  // of these lanes
  u32 mask;
};

// Why a warp is not running.
enum class Wait : u8 { none, named_barrier, mbarrier, warpgroup, cluster_barrier, registers, finished };

// An issued wgmma: everything it needs except the registers that it accumulates into.
struct MatrixJob {
  const Ins* ins = nullptr;
  u64 a = 0;  // a descriptor
  u64 b = 0;
  bool accumulate = true;
  u32 fragment[4][kLanes];  // A in registers, with the values at the issue
  bool repeats = false;     // accumulates into the same registers as the previous job in the group
  u32 clock[3 * kMaxAgents + kClockPadding];  // of the warp at the issue, if order is checked
};

struct Warp {
  // The fast path uses these.
  const std::byte* bank[2] = {};  // registers; constants, minus the 1 that bit 0 adds
  u32* predicates = nullptr;
  u32 pc = 0;
  u32 active = 0;
  u32 rejoin = kNoTarget;
  int budget = 0;  // instructions until another warp's turn
  u32 exited = 0;
  u8 watch = 0;                        // the InsFlags for which the loop stops
  u64 known_begin = 1, known_end = 0;  // the allocation of the last access
  Allocation* known = nullptr;
  Cta* cta = nullptr;
  // The clocks of the cluster's agents, then those of their leaders (shared_state.hpp), then those up to
  // which a fence that the warp has synchronised with made their writes visible to the asynchronous proxy.
  // Its own are clock[agent] and *leader_clock, which are equal.
  u32* clock = nullptr;
  u32* leader_clock = nullptr;
  u32 agent = 0;
  u32 met = 0;  // its own clock up to which each lane is ordered after what the others did

  std::vector<Divergence> stack;
  u32 index = 0;  // within the CTA
  Wait wait = Wait::none;
  bool polling = false;  // read a word that another thread will write: others go first
  u32 wait_address = 0;  // barrier number, or address of the mbarrier
  u32 wait_parity = 0;
  Cta* wait_cta = nullptr;               // the CTA of the mbarrier
  u32 votes_true = 0;                    // threads that said yes at its last named barrier (bar.red) …
  u32 votes_all = 0;                     // … of those that came
  u32 registers = 0;                     // per thread, as setmaxnreg left them
  u32 wanted_registers = 0;              // how many it waits for
  u32 register_changes = 0;              // how many setmaxnreg it has executed …
  const Ins* register_change = nullptr;  // … and the last of them
  u32 impatience = 0;                    // how often in a row try_wait fails before it really waits
  u32 failures = 0;                      // how often it has failed so far
  u32 cluster_arrived = 0;               // lanes that have arrived at the cluster's barrier in its open phase
  u32 cluster_owed = 0;                  // lanes that have arrived there and not waited since
  u64 instructions = 0;

  AsyncCopies copies;                                // cp.async
  int bulk_groups[kLanes] = {};                      // cp.async.bulk groups that each lane has committed
  std::deque<std::vector<MatrixJob>> matrix_groups;  // committed, not yet waited for
  u64 matrix_committed = 0, matrix_done = 0, matrix_waited = 0, matrix_target = 0;  // groups
  std::vector<u16> in_flight;                        // by row / 128: how many running wgmma own the row
  std::vector<MatrixJob> matrix_open;                // issued, not yet committed
  std::vector<std::vector<MatrixJob>> matrix_spare;  // empty ones for reuse
  std::vector<u32> fence_clock;                      // its clocks at its last fence; empty if it had none
  std::vector<u32> unfenced_clock;                   // what its relaxed waits have learnt since then
  std::vector<std::byte> local;                      // local memory, lane after lane
  float* fragment = nullptr;                         // A of the last mma as floats: [16][2][32]
  HeldLoads held;                                    // if order is checked

  template <class T>
  [[nodiscard]] const T* source(u32 row) const {
    return reinterpret_cast<const T*>(bank[row & 1] + row);
  }
  template <class T>
  [[nodiscard]] T* destination(u32 row) const {
    return reinterpret_cast<T*>(const_cast<std::byte*>(bank[0]) + row);
  }
  [[nodiscard]] u32 everyone() const { return ~exited; }
  [[nodiscard]] Agent as_agent(int lane = kWholeWarp) const {
    return {agent, clock, static_cast<u32>(lane), met};
  }
  void set_predicate(u32 predicate, u32 mask, u32 value) {
    predicates[predicate] = (predicates[predicate] & ~mask) | (value & mask);
  }
  // Copies its clocks, padded as SharedState needs them.
  void copy_clock(std::vector<u32>& to, u32 width) const;
  void release() { *leader_clock = ++clock[agent]; }  // later work comes after what others acquire now
  // Orders what its lanes do next after what they did before.
  void meet() {
    met = clock[agent];
    release();
  }
  void yield() { budget = 0; }
};

struct Cta {
  LaunchContext* launch = nullptr;
  Cluster* cluster = nullptr;
  u32 rank = 0;
  u32 id[3] = {};
  u32 threads = 0;
  std::byte* shared = nullptr;  // indexed by shared address
  u32 shared_end = 0;           // first address past the end
  SharedState state;
  NamedBarrier barriers[16];
  std::vector<Warp> warps;
  u32 running = 0;       // how many warps have not finished
  u32 pool = 0;          // registers that warps have given up (setmaxnreg)
  u32 matrix_epoch = 0;  // counts changes of shared memory that wgmma may have cached

  std::vector<std::byte> shared_storage;
  std::vector<std::byte> row_storage;
  std::vector<u32> predicate_storage;
  std::vector<float> fragment_storage;
};

// A 16 x N operand B of wgmma as floats, in the order of the accumulator's lanes. Four warps use the same
// one, and often more.
struct MatrixTile {
  const Cta* cta = nullptr;
  u64 descriptor = 0;
  u32 epoch = 0;                   // Cta::matrix_epoch when it was read
  u32 shape = 0;                   // columns, type and order
  alignas(32) float b[32][16][8];  // [group of 8 columns][k][even columns, then odd ones]
};

// CTAs that run together, on one thread.
struct Cluster {
  LaunchContext* launch = nullptr;
  Counters* counters = nullptr;
  std::vector<Cta> ctas;
  u32 agents = 0;
  u32 clock_width = 0;           // length of a warp's clocks: three per agent
  std::vector<u32> clocks;       // agents x clock_width
  std::vector<u32> init_fenced;  // clock up to which an agent's initialisations of mbarriers are fenced
  std::vector<u8> leaders;       // the lane of each agent that arrives for the warp (shared_state.hpp)
  AsyncQueue queue;
  MbarrierClocks mbarriers;
  ClusterBarrier barrier;
  std::vector<MatrixTile> tiles;  // the B operands of wgmma that were converted last
  u64 random_state = 1;
  u64 steps = 0;

  u32 random() {  // xorshift
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return static_cast<u32>(random_state >> 32);
  }
  Warp& warp_of(u32 agent) {
    const auto per_cta = static_cast<u32>(ctas.front().warps.size());
    return ctas[agent / per_cta].warps[agent % per_cta];
  }
};

inline void Warp::copy_clock(std::vector<u32>& to, u32 width) const {
  to.assign(clock, clock + width);
  to.resize(width + kClockPadding);
}

// Reports, and goes on.
void finding(const Warp& warp, const Ins& ins, FindingKind kind, u32 lanes, std::string message);
// Reports, and ends the launch.
[[noreturn]] void stop(const Warp& warp, const Ins& ins, FindingKind kind, u32 lanes, std::string message);

inline bool checking(const Warp& warp) {
  return warp.cta->launch->checks != Checks::off;
}
inline bool ordering(const Warp& warp) {
  return warp.cta->launch->checks == Checks::all;
}
inline bool counting(const Warp& warp) {
  return warp.cta->launch->counts;
}
inline u32 index_of(const Warp& warp, const Ins& ins) {
  return static_cast<u32>(&ins - warp.cta->launch->program->code.data());
}

// Throws Stop if the CTA of the cluster has exited.
void check_running(const Warp& warp, const Ins& ins, const Cta& cta);
// The CTA that a shared::cluster address belongs to; removes the rank from the address.
Cta& cta_of(Warp& warp, const Ins& ins, u32& address);

// Throws Stop unless address .. address + bytes is inside the CTA's shared memory and a multiple of `align`.
void check_shared_slowly(const Warp& warp, const Ins& ins, const Cta& cta, u32 address, u64 bytes, u32 align,
                         u32 lane);
inline void check_shared(const Warp& warp, const Ins& ins, const Cta& cta, u32 address, u64 bytes, u32 align,
                         u32 lane) {
  if (address < kSharedBase || address + bytes > cta.shared_end || (address & (align - 1)) != 0) {
    check_shared_slowly(warp, ins, cta, address, bytes, align, lane);
  }
}

// The same for global memory, including freed memory and, for reads, memory that nothing wrote (`used`: one
// bit for each byte that counts). Sets warp.known to the allocation.
void check_global_slowly(Warp& warp, const Ins& ins, u64 address, u32 bytes, u32 align, u32 lane);
inline void check_global(Warp& warp, const Ins& ins, u64 address, u32 bytes, u32 align, u32 lane) {
  if (address < warp.known_begin || address > warp.known_end || bytes > warp.known_end - address ||
      (address & (align - 1)) != 0) {
    check_global_slowly(warp, ins, address, bytes, align, lane);
  }
}
void check_written(Warp& warp, const Ins& ins, u64 address, u32 bytes, u64 used, u32 lane);

// The warps of the warpgroup; fewer than four if the CTA has no more.
inline std::span<Warp> warpgroup_of(const Warp& warp) {
  return std::span(warp.cta->warps)
      .subspan(warp.index & ~3u)
      .first(std::min<std::size_t>(4, warp.cta->warps.size() - (warp.index & ~3u)));
}

// Whether the four warps of the warpgroup have committed the wgmma groups that `warp` waits for.
inline bool warpgroup_ready(const Warp& warp) {
  const u32 first = warp.index & ~3u;
  if (first + 4 > warp.cta->warps.size()) return false;
  for (u32 k = first; k < first + 4; ++k) {
    if (warp.cta->warps[k].matrix_committed < warp.matrix_target) return false;
  }
  return true;
}

// Whether the CTA's pool has the registers that the warp waits for.
inline bool registers_ready(const Warp& warp) {
  return (warp.wanted_registers - warp.registers) * kLanes <= warp.cta->pool;
}

// Runs every CTA of the launch, on `threads` threads; `progress` is told how many are done. Findings are
// added to the report; a Stop ends the launch early. Adds to the profile if the launch counts.
void run_launch(LaunchContext& launch, u32 threads, Counters* profile,
                const std::function<void(u64 done, u64 of)>& progress);

}  // namespace flashjit::emulator
