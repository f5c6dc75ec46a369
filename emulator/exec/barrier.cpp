// Barriers of the CTA and the cluster, fences, and addresses in other CTAs of the cluster.
#include "emulator/exec/access.hpp"

namespace flashjit::emulator::portable {
namespace {

// ---- named barriers
// Ins::x: how many operands were given (1: all threads of the CTA).
u32 barrier_number(Warp& w, const Ins& i, int lane) {
  const u32 number = w.source<u32>(i.s[0])[lane];
  if (number > 15)
    stop(w, i, FindingKind::barrier, w.active, fmt::format("barrier {}; there are 0 to 15", number));
  return number;
}
BarrierCount barrier_count(const Warp& w, const Ins& i, int lane, bool given) {
  if (given) return {w.source<u32>(i.s[1])[lane]};
  return {(w.cta->threads + kLanes - 1) / kLanes * kLanes, true};
}
// The interpreter's loop checks .aligned. Without .aligned, diverged lanes would each arrive on their own.
void check_converged(Warp& w, const Ins& i, u32 mask) {
  if (mask != w.everyone() && (i.flags & kAligned) == 0) {
    stop(w, i, FindingKind::divergence, mask,
         "a barrier is reached by some lanes of a warp only; the emulator cannot let them wait apart");
  }
}
void sync(Warp& w, const Ins& i, u32 mask) {
  if (mask == 0) return;
  check_converged(w, i, mask);
  const int lane = std::countr_zero(mask);
  arrive_at(w, i, barrier_number(w, i, lane), barrier_count(w, i, lane, i.x == 2), true, 0);
}
void arrive(Warp& w, const Ins& i, u32 mask) {
  if (mask == 0) return;
  check_converged(w, i, mask);
  const int lane = std::countr_zero(mask);
  arrive_at(w, i, barrier_number(w, i, lane), barrier_count(w, i, lane, true), false, 0);
}
void prepare_sync(Decoding& decoding) {
  decoding.ins.x = static_cast<u8>(decoding.operands());
}

// bar.red: a warp that waited executes it again, and takes the result (wait_parity marks this).
enum class Vote : u8 { all, any, count };
template <Vote V>
void reduce(Warp& w, const Ins& i, u32 mask) {
  if (mask == 0) return;
  check_converged(w, i, mask);
  const int lane = std::countr_zero(mask);
  const u32 number = barrier_number(w, i, lane);
  const bool counted = i.x == 4;
  constexpr u32 kReturned = 2;
  if (w.wait_parity != kReturned) {
    const u32 votes = predicate_of(w, i, counted ? 2 : 1) & mask;
    if (!arrive_at(w, i, number, barrier_count(w, i, lane, counted), true, votes)) {
      w.wait_parity = kReturned;
      --w.pc;
      return;
    }
  }
  w.wait_parity = 0;
  const u32 yes = w.votes_true, all = w.votes_all;
  if (V == Vote::count) {
    for (u32 m = mask; m != 0; m &= m - 1) w.destination<u32>(i.d)[std::countr_zero(m)] = yes;
  } else {
    w.set_predicate(i.d, mask, (V == Vote::any ? yes != 0 : yes == all) ? kFull : 0);
  }
}

// Ins::x: 1 if the arrival is relaxed.
void cluster_arrive(Warp& w, const Ins& i, u32 mask) {
  if (mask == 0) return;
  const u32* told = told_by(w, i.x != 0);
  if (i.x == 0)
    w.held.finish(w);  // MEMBAR.GPU comes before a release to the cluster
  else if (told != nullptr)
    w.held.tell(w, i);
  arrive_at_cluster(w, i, mask, told);
}
void prepare_cluster_arrive(Decoding& decoding) {
  decoding.ins.x = decoding.has("relaxed") ? 1 : 0;
}
void cluster_wait(Warp& w, const Ins& i, u32 mask) {
  if (mask == 0) return;
  const bool passes = (mask & (w.cluster_arrived | ~w.cluster_owed)) == 0;
  w.cluster_owed &= ~mask;
  w.meet();
  if (passes) {
    const std::vector<u32>& visible = w.cta->cluster->barrier.visible;
    for (std::size_t k = 0; k < visible.size(); ++k) w.clock[k] = std::max(w.clock[k], visible[k]);
    return;
  }
  if ((w.everyone() & ~mask & ~w.cluster_arrived) != 0) {
    stop(w, i, FindingKind::divergence, mask,
         "some lanes of a warp wait for the cluster before the others arrive; the emulator cannot let them "
         "wait apart");
  }
  w.wait = Wait::cluster_barrier;
  w.yield();
}

// ---- fences
// From now on, all writes that the warp knows of are visible to the asynchronous proxy, for itself and for
// whoever synchronises with it: the fence must lie on the path from the write to the copy.
void proxy_fence(Warp& w, const Ins&, u32 mask) {
  if (mask == 0) return;
  const u32 agents = w.cta->cluster->agents;
  u32* fenced = w.clock + std::size_t{2} * agents;
  w.held.finish(w);
  for (u32 k = 0; k < agents; ++k) fenced[k] = std::max(fenced[k], w.clock[k]);
  w.release();
}
// Orders only this thread's initialisation of mbarriers. Other writes stay unfenced, so this has a clock of
// its own.
void init_fence(Warp& w, const Ins&, u32 mask) {
  if (mask == 0) return;
  Cluster& cluster = *w.cta->cluster;
  cluster.init_fenced[w.agent] = std::max(cluster.init_fenced[w.agent], w.clock[w.agent]);
  w.release();
}
void other_proxy_fence(Warp&, const Ins&, u32) {}
void fence(Warp& w, const Ins&, u32 mask) {
  if (mask == 0 || !ordering(w)) return;
  w.held.finish(w);
  for (std::size_t k = 0; k < w.unfenced_clock.size(); ++k)
    w.clock[k] = std::max(w.clock[k], w.unfenced_clock[k]);
  w.unfenced_clock.clear();
  w.copy_clock(w.fence_clock, w.cta->cluster->clock_width);
  w.release();
}

// ---- the cluster's addresses
template <class T>
void map_to_rank(Warp& w, const Ins& i, u32 mask) {
  const T* a = w.source<T>(i.s[0]);
  const u32* rank = w.source<u32>(i.s[1]);
  const auto ctas = static_cast<u32>(w.cta->cluster->ctas.size());
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    if (rank[l] >= ctas)
      stop(w, i, FindingKind::out_of_bounds, 1u << l,
           fmt::format("mapa to CTA {} of a cluster of {}", rank[l], ctas));
    const T kept = a[l] & ~(T{0xff} << kRankShift);
    w.destination<T>(i.d)[l] = kept | static_cast<T>(rank[l] + 1) << kRankShift;
  }
}
template <class T>
void rank_of(Warp& w, const Ins& i, u32 mask) {
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const u32 rank = static_cast<u32>(w.source<T>(i.s[0])[l]) >> kRankShift;
    w.destination<u32>(i.d)[l] = rank == 0 ? w.cta->rank : rank - 1;
  }
}

constexpr OpClass kBar = OpClass::barrier;
const Opcode kRows[] = {
    {"bar.cta?.sync", "ss?", kBar, sync, prepare_sync, kOpAligned},
    {"barrier.cta?.sync.aligned", "ss?", kBar, sync, prepare_sync, kOpAligned},
    {"barrier.cta?.sync", "ss?", kBar, sync, prepare_sync},
    {"bar.cta?.arrive", "ss", kBar, arrive, prepare_sync, kOpAligned},
    {"barrier.cta?.arrive.aligned", "ss", kBar, arrive, prepare_sync, kOpAligned},
    {"barrier.cta?.arrive", "ss", kBar, arrive, prepare_sync},
    {"(bar|barrier).cta?.red.popc.aligned?.u32", "dss?q", kBar, reduce<Vote::count>, prepare_sync,
     kOpAligned | kOpEarly},
    {"(bar|barrier).cta?.red.and.aligned?.pred", "pss?q", kBar, reduce<Vote::all>, prepare_sync, kOpAligned},
    {"(bar|barrier).cta?.red.or.aligned?.pred", "pss?q", kBar, reduce<Vote::any>, prepare_sync, kOpAligned},
    {"barrier.cluster.arrive.(release|relaxed)?.aligned", "", kBar, cluster_arrive, prepare_cluster_arrive,
     kOpAligned},
    {"barrier.cluster.arrive.(release|relaxed)?", "", kBar, cluster_arrive, prepare_cluster_arrive},
    {"barrier.cluster.wait.acquire?.aligned", "", kBar, cluster_wait, nullptr, kOpAligned},
    {"barrier.cluster.wait.acquire?", "", kBar, cluster_wait},
    {"fence.proxy.async.(shared|shared::cta|shared::cluster)?", "", kBar, proxy_fence},
    // Which proxy writes global memory is not tracked.
    {"fence.proxy.async.global", "", kBar, other_proxy_fence},
    {"fence.proxy.(alias|generic|tensormap)", "", kBar, other_proxy_fence},
    {"fence.mbarrier_init.release.cluster", "", kBar, init_fence},
    {"fence.(sc|acq_rel|acquire|release)?.(cta|cluster|gpu|sys)", "", kBar, fence},
    {"membar.(cta|gl|sys)", "", kBar, fence},
    {"mapa.(shared::cluster)?.u32", "dss", OpClass::integer, map_to_rank<u32>},
    {"mapa.(shared::cluster)?.u64", "DSs", OpClass::integer, map_to_rank<u64>},
    {"getctarank.(shared::cluster)?.u32", "ds", OpClass::integer, rank_of<u32>},
    {"getctarank.(shared::cluster)?.u64", "dS", OpClass::integer, rank_of<u64>, nullptr, kOpEarly},
};

}  // namespace

std::span<const Opcode> barrier_rows() {
  return kRows;
}

}  // namespace flashjit::emulator::portable
