// The state of a cluster before its first instruction: fresh shared memory and registers, and how its seed
// will treat it.
#include <algorithm>

#include "emulator/machine/cluster_runner.hpp"
#include "emulator/machine/special_registers.hpp"

namespace flashjit::emulator {
namespace {

constexpr std::size_t kAlign = 64;
constexpr u32 kMostRegisters = 255;         // of one thread
constexpr u32 kFragment = 16 * 2 * kLanes;  // floats of an A operand after spreading

std::byte* aligned(std::vector<std::byte>& storage) {
  return storage.data() + (kAlign - reinterpret_cast<u64>(storage.data()) % kAlign) % kAlign;
}

}  // namespace

ClusterRunner::ClusterRunner(LaunchContext& launch, Counters* counters)
    : launch_(launch), program_(*launch.program) {
  cluster_.launch = &launch;
  cluster_.counters = counters;
  cluster_.ctas.resize(launch.cluster);
  threads_ = launch.block[0] * launch.block[1] * launch.block[2];
  const u32 warps = (threads_ + kLanes - 1) / kLanes;
  cluster_.agents = warps * launch.cluster;
  ordered_ = launch.checks == Checks::all;
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

void ClusterRunner::choose_pace() {
  const u32 dice = cluster_.random();
  pace_ = static_cast<Pace>(dice % 3);
  single_count_ = (dice >> 8 & 1) != 0 ? std::min(4u, cluster_.agents) : 1;
  single_first_ = (dice >> 16) % cluster_.agents / single_count_ * single_count_;
  single_count_ = std::min(single_count_, cluster_.agents - single_first_);
}

void ClusterRunner::start(u64 index) {
  cluster_.random_state = (launch_.seed + 1) * 0x9e3779b97f4a7c15ull ^ (index + 1) * 0xd1342543de82ef95ull;
  cluster_.random_state |= 1;
  for (int k = 0; k < 4; ++k) (void)cluster_.random();
  // Chosen in turn and not at random: any twelve consecutive seeds try all of them on each CTA.
  using Policy = AsyncQueue::Policy;
  constexpr Policy kPolicies[12] = {Policy::random,  Policy::late,    Policy::partial,  Policy::early,
                                    Policy::random,  Policy::partial, Policy::random,   Policy::reversed,
                                    Policy::partial, Policy::late,    Policy::reversed, Policy::partial};
  const u64 turn = (launch_.seed + index) % 12;
  cluster_.queue.reset(kPolicies[turn], static_cast<u32>(turn) & 3);
  choose_pace();
  // Lateness shows only if no warp insists on waiting, not even one of those that work on the data together.
  const bool has_late = kPolicies[turn] == Policy::late || kPolicies[turn] == Policy::partial;
  all_impatient_ = has_late && (cluster_.random() & 3) != 0;
  const u32 agents = cluster_.agents;
  cluster_.clock_width = 3 * agents;
  cluster_.clocks.assign(std::size_t{agents} * cluster_.clock_width + kClockPadding, 0);
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
      cta.state.set_leaders(cluster_.leaders.data());
    }
    ++cta.matrix_epoch;
    cta.running = static_cast<u32>(cta.warps.size());
    cta.pool = 0;
    for (NamedBarrier& barrier : cta.barriers) barrier = {};
    for (u32 k = 0; k < cta.warps.size(); ++k) start(cta, k, rank * static_cast<u32>(cta.warps.size()) + k);
  }
}

void ClusterRunner::start(Cta& cta, u32 index, u32 agent) {
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
  // What ptxas gives a thread in a kernel with setmaxnreg: a multiprocessor's registers, divided among the
  // CTAs that it must allow (in CUDA's units of 8).
  const u64 sharing = u64{threads_} * std::max(program_.min_ctas, 1u);
  warp.registers = static_cast<u32>(std::min<u64>(kMostRegisters, 65536 / sharing & ~u64{7}));
  warp.watch = launch_.checks == Checks::off ? u8{0} : u8{kAligned | kBreaksRule};
  if (ordered_) warp.watch |= kTouchesLoaded;
  warp.local.assign(std::size_t{program_.local_bytes} * kLanes, std::byte{0xff});
  if (launch_.checks != Checks::off) warp.in_flight.assign(program_.row_bytes / 128 + 2, 0);
  for (const auto& [special, row] : program_.specials) {
    u32* values = warp.destination<u32>(row);
    for (u32 lane = 0; lane < kLanes; ++lane) values[lane] = special_value(cta, warp, special, lane);
  }
}

}  // namespace flashjit::emulator
