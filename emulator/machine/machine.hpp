// The state of a running launch: warps, CTAs, clusters, and what handlers need of them.
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
  u64 most_steps = 0;  // instructions of one cluster
  // Turns that warps of all clusters have had, but those that only looked at a word another one will write,
  // and threads that are at work.
  std::atomic<u64> turns{0};
  std::atomic<u32> at_work{0};
  std::atomic<bool> stopped{false};  // a finding, or an error, of one cluster ends all
};

// Lanes that wait for others to meet them again.
struct Divergence {
  u32 pc;
  u32 rejoin;  // of these lanes
  u32 mask;
};

// Why a warp does not run.
enum class Wait : u8 { none, named_barrier, mbarrier, warpgroup, cluster_barrier, registers, finished };

// A wgmma that was issued: all that it needs besides the registers it accumulates into.
struct MatrixJob {
  const Ins* ins = nullptr;
  u64 a = 0;  // descriptor
  u64 b = 0;
  bool accumulate = true;
  u32 fragment[4][kLanes];  // A from registers, as they were when it was issued
  bool repeats = false;     // accumulates into the same registers as the job before it in the group
  u32 clock[2 * kMaxAgents + kClockPadding];  // of the warp when it was issued, where order is kept
};

struct Warp {
  // What the fast path touches.
  const std::byte* bank[2] = {};  // registers; constants, less the one of bit 0
  u32* predicates = nullptr;
  u32 pc = 0;
  u32 active = 0;
  u32 rejoin = kNoTarget;
  int budget = 0;  // instructions until another warp's turn
  u32 exited = 0;
  u8 watch = 0;                        // InsFlags that the loop stops for
  u64 known_begin = 1, known_end = 0;  // the allocation that was hit last
  Allocation* known = nullptr;
  Cta* cta = nullptr;
  // Of the cluster's agents, then of their leaders (shared_state.hpp); clock[agent] and *leader_clock, which
  // are the same, are its own.
  u32* clock = nullptr;
  u32* leader_clock = nullptr;
  u32 agent = 0;
  u32 met = 0;  // up to this clock of its own, each lane is ordered after all that the others did

  std::vector<Divergence> stack;
  u32 index = 0;  // within the CTA
  Wait wait = Wait::none;
  bool polling = false;  // looked at a word that another thread will write: others go first
  u32 wait_address = 0;  // barrier number, or address of the mbarrier
  u32 wait_parity = 0;
  Cta* wait_cta = nullptr;               // whose mbarrier
  u32 registers = 0;                     // of a thread, as setmaxnreg left them
  u32 wanted_registers = 0;              // that it waits for
  u32 register_changes = 0;              // setmaxnreg that it has executed …
  const Ins* register_change = nullptr;  // … and the last of them
  u32 impatience = 0;                    // times in a row that its try_wait fails before it waits in earnest
  u32 failures = 0;                      // so far
  u32 cluster_arrived = 0;               // lanes that are at the cluster's barrier in its open phase
  u32 cluster_owed = 0;                  // lanes that arrived there and have not waited since
  u64 instructions = 0;

  AsyncCopies copies;                                // cp.async
  int bulk_groups[kLanes] = {};                      // cp.async.bulk groups that each lane has committed
  std::deque<std::vector<MatrixJob>> matrix_groups;  // committed, not yet waited for
  u64 matrix_committed = 0, matrix_done = 0, matrix_waited = 0, matrix_target = 0;  // groups
  std::vector<u16> in_flight;                        // by row / 128: how many wgmma under way own the row
  std::vector<MatrixJob> matrix_open;                // issued, not yet committed
  std::vector<std::vector<MatrixJob>> matrix_spare;  // empty ones, to be filled again
  std::vector<u32> fence_clock;                      // its clocks at its last fence; empty before
  std::vector<u32> unfenced_clock;                   // what its relaxed waits have heard since then
  std::vector<std::byte> local;                      // local memory, lane after lane
  float* fragment = nullptr;                         // A of the last mma as floats: [16][2][32]
  HeldLoads held;                                    // where order is kept

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
  // A copy of its clocks, padded as SharedState wants them.
  void copy_clock(std::vector<u32>& to, u32 width) const;
  void release() { *leader_clock = ++clock[agent]; }  // what comes next is after what others acquire now
  // What its lanes do next is after what they did before.
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
  u32 running = 0;       // warps that have not finished
  u32 pool = 0;          // registers that warps have given up (setmaxnreg)
  u32 matrix_epoch = 0;  // counts changes of shared memory that wgmma may have cached

  std::vector<std::byte> shared_storage;
  std::vector<std::byte> row_storage;
  std::vector<u32> predicate_storage;
  std::vector<float> fragment_storage;
};

// A 16 x N operand B of wgmma as floats, in the order of the accumulator's lanes; four warps and often more
// use one.
struct MatrixTile {
  const Cta* cta = nullptr;
  u64 descriptor = 0;
  u32 epoch = 0;                   // of Cta::matrix_epoch when it was read
  u32 shape = 0;                   // columns, type and order
  alignas(32) float b[32][16][8];  // [group of 8 columns][k][even columns, then odd ones]
};

// CTAs that run together, on one thread.
struct Cluster {
  LaunchContext* launch = nullptr;
  Counters* counters = nullptr;
  std::vector<Cta> ctas;
  u32 agents = 0;
  u32 clock_width = 0;           // of a warp's clocks: of each agent's, and of its leader's
  std::vector<u32> clocks;       // agents x clock_width
  std::vector<u32> fenced;       // clock up to which an agent's writes are fenced for the asynchronous proxy
  std::vector<u32> init_fenced;  // and its initialisations of mbarriers
  std::vector<u8> leaders;       // each agent's lane that arrives for the warp (shared_state.hpp)
  AsyncQueue queue;
  MbarrierClocks mbarriers;
  ClusterBarrier barrier;
  std::vector<MatrixTile> tiles;  // B operands of wgmma that were converted last
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

// Reports and goes on.
void finding(const Warp& warp, const Ins& ins, FindingKind kind, u32 lanes, std::string message);
// Reports and ends the launch.
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

// The CTA that a shared::cluster address belongs to; strips the rank off the address.
Cta& cta_of(Warp& warp, const Ins& ins, u32& address);

// Throws Stop unless address .. address + bytes lies in the CTA's shared memory and is a multiple of `align`.
void check_shared_slowly(const Warp& warp, const Ins& ins, const Cta& cta, u32 address, u64 bytes, u32 align,
                         u32 lane);
inline void check_shared(const Warp& warp, const Ins& ins, const Cta& cta, u32 address, u64 bytes, u32 align,
                         u32 lane) {
  if (address < kSharedBase || address + bytes > cta.shared_end || (address & (align - 1)) != 0) {
    check_shared_slowly(warp, ins, cta, address, bytes, align, lane);
  }
}

// Likewise for global memory, with what was freed and, for reads, what nothing wrote (`used`: a bit per byte
// that counts). Returns with warp.known set to the allocation.
void check_global_slowly(Warp& warp, const Ins& ins, u64 address, u32 bytes, u32 align, u32 lane);
inline void check_global(Warp& warp, const Ins& ins, u64 address, u32 bytes, u32 align, u32 lane) {
  if (address < warp.known_begin || address > warp.known_end || bytes > warp.known_end - address ||
      (address & (align - 1)) != 0) {
    check_global_slowly(warp, ins, address, bytes, align, lane);
  }
}
void check_written(Warp& warp, const Ins& ins, u64 address, u32 bytes, u64 used, u32 lane);

// The warps of the warpgroup; fewer than four where the CTA ends before.
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

// Runs every CTA of the launch on `threads` threads; `progress` hears of each that is done. Adds to the
// report; a Stop ends it early. Adds to the profile if the launch counts.
void run_launch(LaunchContext& launch, u32 threads, Counters* profile,
                const std::function<void(u64 done, u64 of)>& progress);

}  // namespace flashjit::emulator
