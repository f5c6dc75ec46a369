// Barriers of the CTA and the cluster, mbarriers, fences, and addresses in other CTAs of the cluster.
#include "emulator/exec/access.hpp"

namespace flashjit::emulator::portable {
namespace {

// ---- named barriers
// Ins::x operands given (1: all threads of the CTA).
u32 barrier_number(Warp& w, const Ins& i, int lane) {
  const u32 number = w.source<u32>(i.s[0])[lane];
  if (number > 15)
    stop(w, i, FindingKind::barrier, w.active, fmt::format("barrier {}; there are 0 to 15", number));
  return number;
}
u32 barrier_count(const Warp& w, const Ins& i, int lane, bool given) {
  return given ? w.source<u32>(i.s[1])[lane] : (w.cta->threads + kLanes - 1) / kLanes * kLanes;
}
// .aligned is checked by the loop; without it, lanes that diverged would each arrive on their own.
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

// bar.red: a warp that waited comes back here and takes the result (wait_parity tells).
enum class Vote : u8 { all, any, count };
template <Vote V>
void reduce(Warp& w, const Ins& i, u32 mask) {
  if (mask == 0) return;
  check_converged(w, i, mask);
  const int lane = std::countr_zero(mask);
  const u32 number = barrier_number(w, i, lane);
  const bool counted = i.x == 4;
  NamedBarrier& barrier = w.cta->barriers[number];
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
  const u32 yes = barrier.last_result_true, all = barrier.last_result_threads;
  if (V == Vote::count) {
    for (u32 m = mask; m != 0; m &= m - 1) w.destination<u32>(i.d)[std::countr_zero(m)] = yes;
  } else {
    w.set_predicate(i.d, mask, (V == Vote::any ? yes != 0 : yes == all) ? kFull : 0);
  }
}

// What an arrival tells others: all that the warp knows, or, if it is relaxed, what it knew at its last
// fence.
u32* told_by(Warp& w, bool relaxed) {
  if (!relaxed) return w.clock;
  return w.fence_clock.empty() ? nullptr : w.fence_clock.data();
}

// Ins::x: it is relaxed.
void cluster_arrive(Warp& w, const Ins& i, u32 mask) {
  if (mask != 0) arrive_at_cluster(w, mask, told_by(w, i.x != 0));
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

// ---- mbarriers
struct Object {
  Cta* cta;
  u32 address;
};
// Ins::y: source index of the address.
Object object_at(Warp& w, const Ins& i, int lane, bool must_exist = true) {
  u32 address = shared_address_of(w, i, i.y, lane);
  Cta& cta = cta_of(w, i, address);
  check_shared(w, i, cta, address, 8, 8, static_cast<u32>(lane));
  if (must_exist && checking(w) && !cta.state.is_barrier(address)) {
    stop(w, i, FindingKind::barrier, 1u << lane,
         fmt::format("there is no mbarrier at offset {}: it was not initialised, or was overwritten",
                     address - kSharedBase));
  }
  return {&cta, address};
}

void init(Warp& w, const Ins& i, u32 mask) {
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const Object at = object_at(w, i, l, false);
    const u32 count = w.source<u32>(i.s[1])[l];
    if (count == 0 || count > Mbarrier::kMaxCount)
      stop(w, i, FindingKind::barrier, 1u << l,
           fmt::format("an mbarrier for {} arrivals, may be 1 to {}", count, Mbarrier::kMaxCount));
    if (checking(w)) at.cta->state.make_barrier(w, i, w.as_agent(), at.address);
    Mbarrier{.phase = 0, .pending = count, .expected = count, .bytes = 0}.store(*at.cta, at.address);
  }
}
void invalidate(Warp& w, const Ins& i, u32 mask) {
  for (u32 m = mask; m != 0; m &= m - 1) {
    const Object at = object_at(w, i, std::countr_zero(m));
    if (checking(w)) at.cta->state.forget_barrier(at.address);
  }
}

// A lane that arrives alone speaks for what it did itself, and for what the warp had done when it met last.
void join_alone(Warp& w, const Object& at, int lane, u32* told) {
  Cluster& cluster = *w.cta->cluster;
  u8& leader = cluster.leaders[w.agent];
  leader = leader == kNoLeader || leader == lane ? static_cast<u8>(lane) : kManyLeaders;
  const u32 own = told[w.agent];
  told[w.agent] = std::min(own, w.met);
  cluster.mbarriers.join(*at.cta, at.address, told, cluster.clock_width);
  told[w.agent] = own;
}
constexpr u8 kRelaxed = 4;
// `count` arrivals (after `bytes` more were announced) by one lane; returns the state before.
u64 arrive_one(Warp& w, const Ins& i, int lane, bool alone, u32 count, i64 bytes) {
  const Object at = object_at(w, i, lane);
  u64 before;
  std::memcpy(&before, at.cta->shared + at.address, sizeof before);
  Cluster& cluster = *w.cta->cluster;
  u32* told = told_by(w, (i.x & kRelaxed) != 0);
  if (ordering(w) && count != 0 && told != nullptr) {
    if (alone)
      join_alone(w, at, lane, told);
    else
      cluster.mbarriers.join(*at.cta, at.address, told, cluster.clock_width);
  }
  if (const char* wrong = mbarrier_arrive(cluster, *at.cta, at.address, count, bytes); wrong != nullptr) {
    stop(w, i, FindingKind::barrier, 1u << lane,
         fmt::format("{} (offset {})", wrong, at.address - kSharedBase));
  }
  return before;
}
// Ins::x: 1 expect_tx comes with it; 2 only expect_tx; 3 only complete_tx; and kRelaxed. s[y + 1] the count
// or bytes, s[y + 2] none.
void arrive_mbarrier(Warp& w, const Ins& i, u32 mask) {
  const bool alone = (mask & (mask - 1)) == 0 && mask != w.everyone();
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const u32 value = i.z != 0 ? w.source<u32>(i.s[i.y + 1])[l] : 1;
    const int kind = i.x & ~kRelaxed;
    const u64 before = kind == 0   ? arrive_one(w, i, l, alone, value, 0)
                       : kind == 1 ? arrive_one(w, i, l, alone, 1, value)
                       : kind == 2 ? arrive_one(w, i, l, alone, 0, value)
                                   : arrive_one(w, i, l, alone, 0, -i64{value});
    if (i.count != 0) w.destination<u64>(i.d)[l] = before;
  }
  if (mask != 0) w.release();
}
void prepare_arrive(Decoding& decoding) {
  Ins& ins = decoding.ins;
  const bool has_state = decoding.operand(0).kind != Operand::Kind::memory;
  const std::size_t memory = has_state ? 1 : 0;
  if (has_state && decoding.operand(0).kind == Operand::Kind::reg) {
    if (!decoding.is_wide(decoding.operand(0))) decoding.fail("the state needs a 64-bit register");
    ins.d = decoding.destination(decoding.operand(0));
    ins.count = 1;
  }
  const Decoding::Address address = decoding.address(decoding.operand(memory));
  ins.s[0] = address.row;
  ins.wide = address.wide ? 1 : 0;
  ins.imm = address.offset;
  ins.y = 0;
  if (decoding.operands() > memory + 1) {
    ins.z = 1;
    ins.s[1] = decoding.source(decoding.operand(memory + 1), false);
  }
  const std::string_view opcode = decoding.statement.opcode;
  ins.x = opcode.substr(0, 25) == "mbarrier.arrive.expect_tx" ? 1
          : opcode.substr(0, 18) == "mbarrier.expect_tx"      ? 2
          : opcode.substr(0, 20) == "mbarrier.complete_tx"    ? 3
                                                              : 0;
  if (decoding.has("relaxed")) ins.x |= kRelaxed;
}

// try_wait and test_wait: whether the phase of the parity (or state) is over. try_wait may fail for no
// reason; a program that does not loop is found out that way. Otherwise the warp sleeps until it succeeds.
void wait(Warp& w, const Ins& i, u32 mask) {
  if (mask == 0) return;
  u32 passed = 0;
  Cluster& cluster = *w.cta->cluster;
  u32 known = 0;
  u32 last_address = 0, last_parity = 0;  // lanes that wait for the same as the one before pass as it did
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const u32 parity =
        (i.x & 2) != 0 ? w.source<u32>(i.s[1])[l] : static_cast<u32>(w.source<u64>(i.s[1])[l] & 1);
    const u32 address = shared_address_of(w, i, 0, l);
    if (passed != 0 && address == last_address && parity == last_parity) {
      passed |= 1u << l;
      continue;
    }
    const Object at = object_at(w, i, l);
    if (mbarrier_passed(Mbarrier::load(*at.cta, at.address), parity)) {
      passed |= 1u << l;
      last_address = address;
      last_parity = parity;
      if (ordering(w)) known = cluster.mbarriers.acquire(*at.cta, at.address, w.clock, w.agent);
      continue;
    }
    if (at.cta != w.cta) stop(w, i, FindingKind::illegal, 1u << l, "waits for an mbarrier of another CTA");
    if ((i.x & 1) != 0) continue;  // test_wait
    if (w.failures < w.impatience) {
      ++w.failures;
      w.set_predicate(i.d, mask, 0);
      w.yield();
      return;
    }
    w.failures = 0;
    w.wait = Wait::mbarrier;
    w.wait_cta = at.cta;
    w.wait_address = at.address;
    w.wait_parity = parity & 1;
    --w.pc;
    w.yield();
    if (cluster.counters != nullptr) ++cluster.counters->barrier_waits;
    return;
  }
  w.wait_parity = 0;
  // What the barrier knew of this warp's lanes, all of them know now.
  if (passed == w.everyone()) w.met = std::max(w.met, known);
  w.failures = 0;
  w.set_predicate(i.d, mask, passed);
  if (passed == mask) return;
  // A loop around test_wait: others go first, and copies that come late.
  w.polling = true;
  w.yield();
}
void prepare_wait(Decoding& decoding) {
  Ins& ins = decoding.ins;
  ins.x = static_cast<u8>((decoding.match[1] == "test_wait" ? 1 : 0) | (decoding.has("parity") ? 2 : 0));
  ins.d = decoding.predicate(decoding.operand(0));
  const Decoding::Address address = decoding.address(decoding.operand(1));
  ins.s[0] = address.row;
  ins.wide = address.wide ? 1 : 0;
  ins.imm = address.offset;
  ins.y = 0;
  ins.s[1] = decoding.source(decoding.operand(2), !decoding.has("parity"));
}
void pending_count(Warp& w, const Ins& i, u32 mask) {
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    w.destination<u32>(i.d)[l] = static_cast<u32>(w.source<u64>(i.s[0])[l] >> 1) & Mbarrier::kMaxCount;
  }
}

// ---- fences
// All that the warp has seen written is visible to the asynchronous proxy from now on.
void proxy_fence(Warp& w, const Ins&, u32 mask) {
  if (mask == 0) return;
  Cluster& cluster = *w.cta->cluster;
  for (u32 k = 0; k < cluster.agents; ++k) cluster.fenced[k] = std::max(cluster.fenced[k], w.clock[k]);
  w.release();
}
// Orders this thread's initialisation of mbarriers; other writes stay unfenced, so it is kept apart.
void init_fence(Warp& w, const Ins&, u32 mask) {
  if (mask == 0) return;
  Cluster& cluster = *w.cta->cluster;
  cluster.init_fenced[w.agent] = std::max(cluster.init_fenced[w.agent], w.clock[w.agent]);
  w.release();
}
void other_proxy_fence(Warp&, const Ins&, u32) {}
void fence(Warp& w, const Ins&, u32 mask) {
  if (mask == 0 || !ordering(w)) return;
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
    {"mbarrier.init.(shared|shared::cta)?.b64", "ms", kBar, init},
    {"mbarrier.inval.(shared|shared::cta)?.b64", "m", kBar, invalidate},
    {"mbarrier.arrive.(release|relaxed)?.(cta|cluster)?.(shared|shared::cta|shared::cluster)?.b64", "o**?",
     kBar, arrive_mbarrier, prepare_arrive, kOpEarly},
    {"mbarrier.arrive.noComplete.release?.cta?.(shared|shared::cta)?.b64", "o**?", kBar, arrive_mbarrier,
     prepare_arrive, kOpEarly},
    {"mbarrier.arrive.expect_tx.(release|relaxed)?.(cta|cluster)?.(shared|shared::cta|shared::cluster)?.b64",
     "o**", kBar, arrive_mbarrier, prepare_arrive, kOpEarly},
    {"mbarrier.expect_tx.relaxed?.(cta|cluster)?.(shared|shared::cta|shared::cluster)?.b64", "**", kBar,
     arrive_mbarrier, prepare_arrive},
    {"mbarrier.complete_tx.relaxed?.(cta|cluster)?.(shared|shared::cta|shared::cluster)?.b64", "**", kBar,
     arrive_mbarrier, prepare_arrive},
    {"mbarrier.(try_wait|test_wait).parity?.(acquire|relaxed)?.(cta|cluster)?.(shared|shared::cta)?.b64",
     "p***?", kBar, wait, prepare_wait},
    {"mbarrier.pending_count.b64", "dS", kBar, pending_count},
    {"fence.proxy.async.(shared|shared::cta|shared::cluster)?", "", kBar, proxy_fence},
    // Who writes global memory with which proxy is not watched.
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
