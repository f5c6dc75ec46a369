// Runs a launch: clusters are handed to threads, and within a cluster the seed decides which warp goes next
// and how far.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>

#include "emulator/machine/deadlock.hpp"
#include "emulator/machine/machine.hpp"
#include "emulator/machine/special_registers.hpp"
#include "flashjit/error.hpp"

namespace flashjit::emulator {
namespace {

constexpr std::size_t kAlign = 64;
constexpr u32 kMostRegisters = 255;         // of a thread
constexpr u32 kFragment = 16 * 2 * kLanes;  // floats of a spread A operand

std::byte* aligned(std::vector<std::byte>& storage) {
  return storage.data() + (kAlign - reinterpret_cast<u64>(storage.data()) % kAlign) % kAlign;
}

class Runner {
 public:
  explicit Runner(LaunchContext& launch, Counters* counters) : launch_(launch), program_(*launch.program) {
    cluster_.launch = &launch;
    cluster_.counters = counters;
    cluster_.ctas.resize(launch.cluster);
    threads_ = launch.block[0] * launch.block[1] * launch.block[2];
    const u32 warps = (threads_ + kLanes - 1) / kLanes;
    cluster_.agents = warps * launch.cluster;
    ordered_ = launch.checks == Checks::all && cluster_.agents <= kMaxAgents;
    for (Cta& cta : cluster_.ctas) {
      cta.launch = &launch;
      cta.cluster = &cluster_;
      cta.threads = threads_;
      cta.warps.resize(warps);
      cta.shared_end = program_.dynamic_shared + launch.shared_bytes;
      cta.shared_storage.resize(cta.shared_end + 2 * kAlign);
      cta.row_storage.resize(std::size_t{program_.row_bytes} * warps + 2 * kAlign);
      cta.fragment_storage.resize(std::size_t{kFragment} * warps + 16);
      cta.predicate_storage.resize(std::size_t{program_.predicates} * warps);
    }
  }

  void run(u64 index) {
    reset(index);
    while (live_ > 0) {
      cluster_.queue.step(cluster_);
      Warp* const next = choose();
      if (next == nullptr) {
        const bool moved = cluster_.queue.advance(cluster_);
        Warp* const poller = poll_again();
        if (!moved && poller == nullptr) report_deadlock(cluster_);
        if (!moved) wait_for_others(*poller);
        continue;
      }
      // Mostly long turns, sometimes very short ones, so that every interleaving can come about.
      const u32 dice = cluster_.random();
      const int turn_length =
          (dice & 7) == 0 ? 1 + static_cast<int>(dice >> 8 & 7) : 1 + static_cast<int>(dice >> 8) % 500;
      next->budget = turn_length;
      execute(*next);
      if (next->polling) continue;
      // A shorter turn may end between two looks at a word.
      if (turn_length > 64) launch_.turns.fetch_add(1, std::memory_order_relaxed);
      cluster_.steps += static_cast<u64>(turn_length);
      if (cluster_.steps > launch_.most_steps) {
        stop(*next, program_.code[next->pc], FindingKind::deadlock, next->active, "the CTA runs without end");
      }
      if (next->wait == Wait::finished) finished(*next);
    }
    while (cluster_.queue.advance(cluster_)) {
    }
  }

 private:
  // A warp that can run; null if there is none. Some seeds have a favourite, or one that has to wait for all
  // others: a warp or a warpgroup. Who is a turn of a ring ahead, or behind, is not so by chance.
  Warp* choose() {
    const auto per_cta = static_cast<u32>(cluster_.ctas.front().warps.size());
    const u32 warps = cluster_.agents, dice = cluster_.random();
    const bool singled_out = pace_ != Pace::fair && (dice >> 24) >= 16;
    const u32 first =
        singled_out && pace_ == Pace::favourite ? single_first_ + dice % single_count_ : dice % warps;
    Warp* last = nullptr;
    for (u32 k = 0; k < warps; ++k) {
      const u32 agent = first + k < warps ? first + k : first + k - warps;
      Warp& warp = cluster_.ctas[agent / per_cta].warps[agent % per_cta];
      if (warp.wait != Wait::none && (warp.wait == Wait::finished || !may_go_on(warp))) continue;
      if (warp.polling && (dice >> 20 & 15) != 0) continue;
      warp.polling = false;
      if (!singled_out || pace_ == Pace::favourite || agent - single_first_ >= single_count_) return &warp;
      last = &warp;
    }
    return last;
  }

  // Those that wait for a word of memory look at it again. Null if there are none.
  Warp* poll_again() {
    Warp* any = nullptr;
    for (Cta& cta : cluster_.ctas) {
      for (Warp& warp : cta.warps) {
        if (warp.polling) any = &warp;
        warp.polling = false;
      }
    }
    return any;
  }

  // Only another cluster can write what this one waits for.
  void wait_for_others(Warp& poller) {
    if (launch_.stopped) throw Stop{};
    const bool alone = launch_.at_work <= 1;
    const auto now = std::chrono::steady_clock::now();
    const u64 turns = launch_.turns.load(std::memory_order_relaxed);
    naps_ = turns == turns_ ? naps_ + 1 : 0;
    turns_ = turns;
    if (naps_ == 0) asleep_since_ = now;
    // On a busy machine whoever is waited for may not get to run at once.
    if (alone ? naps_ > 1000 : now - asleep_since_ > std::chrono::milliseconds(1500)) {
      stop(poller, program_.code[poller.pc], FindingKind::deadlock, poller.active,
           "waits for a word of global memory that nobody writes");
    }
    if (!alone) std::this_thread::sleep_for(std::chrono::microseconds(10) * std::min(naps_ + 1, 50u));
  }

  void choose_pace() {
    const u32 dice = cluster_.random();
    pace_ = static_cast<Pace>(dice % 3);
    single_count_ = (dice >> 8 & 1) != 0 ? std::min(4u, cluster_.agents) : 1;
    single_first_ = (dice >> 16) % cluster_.agents / single_count_ * single_count_;
    single_count_ = std::min(single_count_, cluster_.agents - single_first_);
  }

  void reset(u64 index) {
    cluster_.random_state = (launch_.seed + 1) * 0x9e3779b97f4a7c15ull ^ (index + 1) * 0xd1342543de82ef95ull;
    cluster_.random_state |= 1;
    for (int k = 0; k < 4; ++k) (void)cluster_.random();
    // Not by chance: any twelve seeds in a row try them all on each CTA.
    using Policy = AsyncQueue::Policy;
    constexpr Policy kPolicies[12] = {Policy::random,  Policy::late,    Policy::partial,  Policy::early,
                                      Policy::random,  Policy::partial, Policy::random,   Policy::reversed,
                                      Policy::partial, Policy::late,    Policy::reversed, Policy::partial};
    const u64 turn = (launch_.seed + index) % 12;
    cluster_.queue.reset(kPolicies[turn], static_cast<u32>(turn) & 3);
    choose_pace();
    // What is late shows where nobody insists on it: not one of the warps that work on it together.
    const bool has_late = kPolicies[turn] == Policy::late || kPolicies[turn] == Policy::partial;
    all_impatient_ = has_late && (cluster_.random() & 3) != 0;
    const u32 agents = cluster_.agents;
    cluster_.clock_width = 2 * agents;
    cluster_.clocks.assign(std::size_t{agents} * cluster_.clock_width + kClockPadding, 0);
    cluster_.fenced.assign(agents, 0);
    cluster_.init_fenced.assign(agents, 0);
    cluster_.leaders.assign(agents, kNoLeader);
    cluster_.mbarriers.clear();
    cluster_.barrier = {};
    cluster_.steps = 0;
    live_ = agents;
    const u64 per_row = launch_.grid[0] / launch_.cluster;
    for (u32 rank = 0; rank < launch_.cluster; ++rank) {
      Cta& cta = cluster_.ctas[rank];
      cta.rank = rank;
      cta.id[0] = static_cast<u32>(index % per_row) * launch_.cluster + rank;
      cta.id[1] = static_cast<u32>(index / per_row % launch_.grid[1]);
      cta.id[2] = static_cast<u32>(index / per_row / launch_.grid[1]);
      cta.shared = aligned(cta.shared_storage);
      std::fill(cta.shared_storage.begin(), cta.shared_storage.end(), std::byte{0xff});
      if (launch_.checks != Checks::off) {
        cta.state.reset(cta.shared_end, agents, ordered_);
        cta.state.set_order(cluster_.fenced.data(), cluster_.leaders.data());
      }
      ++cta.matrix_epoch;
      cta.running = static_cast<u32>(cta.warps.size());
      cta.pool = 0;
      for (NamedBarrier& barrier : cta.barriers) barrier = {};
      for (u32 k = 0; k < cta.warps.size(); ++k) reset(cta, k, rank * static_cast<u32>(cta.warps.size()) + k);
    }
  }

  void reset(Cta& cta, u32 index, u32 agent) {
    Warp& warp = cta.warps[index];
    warp = Warp();
    warp.cta = &cta;
    warp.index = index;
    warp.agent = agent;
    warp.clock = cluster_.clocks.data() + std::size_t{agent} * cluster_.clock_width;
    warp.leader_clock = warp.clock + cluster_.agents + agent;
    warp.release();
    std::byte* rows = aligned(cta.row_storage) + std::size_t{program_.row_bytes} * index;
    warp.bank[0] = rows;
    warp.bank[1] = program_.constants.data() + program_.constants_start - 1;
    warp.predicates = cta.predicate_storage.data() + std::size_t{program_.predicates} * index;
    float* fragments = cta.fragment_storage.data();
    fragments += (kAlign - reinterpret_cast<u64>(fragments) % kAlign) % kAlign / sizeof(float);
    warp.fragment = fragments + std::size_t{kFragment} * index;
    warp.predicates[0] = kFull;
    const u32 left = threads_ - index * kLanes;
    warp.active = left >= kLanes ? kFull : (1u << left) - 1;
    warp.exited = ~warp.active;
    constexpr u32 kImpatience[4] = {0, 1, 1, 8};
    warp.impatience = all_impatient_ ? 1 : kImpatience[cluster_.random() & 3];
    // What ptxas gives a thread that may have all, where setmaxnreg is used (CUDA's granularity is 8).
    warp.registers = std::min(kMostRegisters, 65536 / std::max(threads_, 1u) & ~7u);
    warp.watch = launch_.checks == Checks::off ? u8{0} : u8{kAligned};
    warp.local.assign(std::size_t{program_.local_bytes} * kLanes, std::byte{0xff});
    if (launch_.checks != Checks::off) warp.in_flight.assign(program_.row_bytes / 128 + 2, 0);
    for (const auto& [special, row] : program_.specials) {
      u32* values = warp.destination<u32>(row);
      for (u32 lane = 0; lane < kLanes; ++lane) values[lane] = special_value(cta, warp, special, lane);
    }
  }

  // What the loop stops for: an aligned instruction with lanes missing, or a register that a wgmma still
  // owns.
  void inspect(Warp& warp, const Ins& ins, u32 mask) {
    if ((ins.flags & kAligned) != 0 && mask != warp.everyone() && mask != 0) {
      finding(warp, ins, FindingKind::divergence, mask,
              fmt::format("an aligned instruction is reached by lanes 0x{:08x} of 0x{:08x}", mask,
                          warp.everyone()));
    }
    if ((ins.flags & warp.watch & kTouchesAccumulator) != 0 && (ins.flags & kReleasesWarpgroup) == 0)
      check_in_flight(warp, ins, mask);
  }

  void check_in_flight(Warp& warp, const Ins& ins, u32 mask) {
    auto look = [&](u32 row) {
      if ((row & 1) != 0 || warp.in_flight[row / 128] == 0) return;
      warp.in_flight[row / 128] = 0;
      finding(warp, ins, FindingKind::async_result, mask,
              "uses a register of a wgmma that was not waited for; wgmma.wait_group belongs before");
    };
    const u32 index = index_of(warp, ins);
    for (u32 row : program_.touched_rows(index)) look(row);
  }

  template <bool Checked, bool Counted>
  void loop(Warp& warp) {
    const Ins* code = program_.code.data();
    u64* executed = Counted ? cluster_.counters->executed.data() : nullptr;
    const int start = warp.budget;
    int left = start;
    do {
      const Ins& ins = code[warp.pc];
      if constexpr (Counted) ++executed[warp.pc];
      ++warp.pc;
      const u32 guard = warp.predicates[ins.guard];
      const u32 mask = warp.active & ((ins.flags & kGuardNegated) != 0 ? ~guard : guard);
      if constexpr (Checked) {
        if ((ins.flags & warp.watch) != 0) [[unlikely]]
          inspect(warp, ins, mask);
      }
      ins.run(warp, ins, mask);
      left = --warp.budget;
    } while (left > 0);
    warp.instructions += static_cast<u64>(start);
  }

  void execute(Warp& warp) {
    if (launch_.checks != Checks::off) {
      if (launch_.counts)
        loop<true, true>(warp);
      else
        loop<true, false>(warp);
    } else {
      if (launch_.counts)
        loop<false, true>(warp);
      else
        loop<false, false>(warp);
    }
  }

  bool may_go_on(Warp& warp) {
    switch (warp.wait) {
      case Wait::mbarrier:
        if (!mbarrier_passed(Mbarrier::load(*warp.wait_cta, warp.wait_address), warp.wait_parity))
          return false;
        break;
      case Wait::warpgroup:
        if (!warpgroup_ready(warp)) return false;
        break;
      case Wait::registers:
        if (!registers_ready(warp)) return false;
        break;
      default:
        return false;
    }
    warp.wait = Wait::none;
    return true;
  }

  void finished(Warp& warp) {
    --live_;
    --warp.cta->running;
    for (std::vector<LaneCopies>& group : warp.copies.groups) group.clear();
    if (launch_.cluster > 1) settle_cluster_barrier(cluster_);
  }

  LaunchContext& launch_;
  const Program& program_;
  Cluster cluster_;
  u32 threads_ = 0;
  u32 live_ = 0;
  bool ordered_ = false;
  enum class Pace : u8 { fair, favourite, straggler } pace_ = Pace::fair;
  u32 single_first_ = 0, single_count_ = 1;  // warps that are singled out
  u64 turns_ = 0;                            // of all clusters, when this one last waited for another one
  u32 naps_ = 0;                             // since then
  std::chrono::steady_clock::time_point asleep_since_;
  bool all_impatient_ = false;
};

}  // namespace

void run_launch(LaunchContext& launch, u32 threads, Counters* profile,
                const std::function<void(u64, u64)>& progress) {
  const u64 clusters = u64{launch.grid[0]} / launch.cluster * launch.grid[1] * launch.grid[2];
  std::atomic<u64> next{0}, done{0};
  std::mutex mutex;
  std::exception_ptr error;
  auto work = [&] {
    try {
      Counters counters;
      counters.resize(launch.program->code.size());
      Runner runner(launch, &counters);
      for (u64 index; !launch.stopped && (index = next++) < clusters;) {
        runner.run(index);
        counters.ctas += launch.cluster;
        const u64 now = ++done;
        if (progress) {
          std::lock_guard lock(mutex);
          progress(now * launch.cluster, clusters * launch.cluster);
        }
      }
      if (profile != nullptr) {
        std::lock_guard lock(mutex);
        profile->add(counters);
      }
    } catch (const Stop&) {
      launch.stopped = true;
    } catch (...) {
      std::lock_guard lock(mutex);
      launch.stopped = true;
      error = std::current_exception();
    }
    --launch.at_work;
  };
  const u64 wanted = std::min<u64>(std::max<u32>(threads, 1), clusters);
  launch.at_work = static_cast<u32>(wanted);
  std::vector<std::thread> others;
  for (u64 k = 1; k < wanted; ++k) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace flashjit::emulator
