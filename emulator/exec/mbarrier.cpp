// Barriers in shared memory: arrivals of threads and of bytes, and waits for a phase.
#include "emulator/exec/access.hpp"

namespace flashjit::emulator::portable {
namespace {

struct Object {
  Cta* cta;
  u32 address;
};
// Ins::y: which source is the address.
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
    if (at.cta != w.cta) stop(w, i, FindingKind::illegal, 1u << l, "initialises an mbarrier of another CTA");
    const u32 count = w.source<u32>(i.s[1])[l];
    if (count == 0 || count > Mbarrier::kMaxCount)
      stop(w, i, FindingKind::barrier, 1u << l,
           fmt::format("an mbarrier for {} arrivals, may be 1 to {}", count, Mbarrier::kMaxCount));
    if (checking(w) && at.cta->state.is_barrier(at.address)) {
      finding(w, i, FindingKind::barrier, 1u << l,
              fmt::format("there is an mbarrier at offset {} already; mbarrier.inval belongs before",
                          at.address - kSharedBase));
      at.cta->state.forget_barrier(at.address);
    }
    if (checking(w)) at.cta->state.make_barrier(w, i, w.as_agent(), at.address);
    Mbarrier{.phase = 0, .pending = count, .expected = count, .bytes = 0}.store(*at.cta, at.address);
  }
}
void invalidate(Warp& w, const Ins& i, u32 mask) {
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const Object at = object_at(w, i, l);
    if (at.cta != w.cta) stop(w, i, FindingKind::illegal, 1u << l, "invalidates an mbarrier of another CTA");
    if (checking(w)) at.cta->state.forget_barrier(at.address);
  }
}

// A lane that arrives alone vouches for its own accesses, and for those of its warp before the lanes last
// met.
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
constexpr u8 kWaitsForLoads = 8;  // as fences do: MEMBAR.GPU comes before a release to the cluster
constexpr u8 kNoComplete = 16;
// One lane makes `count` arrivals, after it has announced `bytes` more. Returns the state before that.
u64 arrive_one(Warp& w, const Ins& i, int lane, bool alone, u32 count, i64 bytes) {
  const Object at = object_at(w, i, lane);
  if ((i.x & kNoComplete) != 0) {
    const Mbarrier barrier = Mbarrier::load(*at.cta, at.address);
    if (barrier.pending == count && barrier.bytes == 0) {
      stop(w, i, FindingKind::barrier, 1u << lane,
           fmt::format("mbarrier.arrive.noComplete ends the phase of the mbarrier at offset {}",
                       at.address - kSharedBase));
    }
  }
  if (count != 0 && checking(w)) check_seen(w, i, 1u << lane, *at.cta, at.address);
  u64 before;
  std::memcpy(&before, at.cta->shared + at.address, sizeof before);
  Cluster& cluster = *w.cta->cluster;
  u32* told = told_by(w, (i.x & kRelaxed) != 0);
  if (ordering(w) && count != 0 && told != nullptr) {
    if ((i.x & kWaitsForLoads) != 0)
      w.held.finish(w);
    else
      w.held.tell(w, i);
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
// Ins::x: 1 with expect_tx; 2 only expect_tx; 3 only complete_tx; plus kRelaxed, kNoComplete or
// kWaitsForLoads. s[y + 1] is the count or the bytes; s[y + 2] is unused.
void arrive_mbarrier(Warp& w, const Ins& i, u32 mask) {
  const bool alone = (mask & (mask - 1)) == 0 && mask != w.everyone();
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const u32 value = i.z != 0 ? w.source<u32>(i.s[i.y + 1])[l] : 1;
    const int kind = i.x & 3;
    if (kind == 0 && value == 0)
      stop(w, i, FindingKind::barrier, 1u << l,
           "arrives at an mbarrier with a count of 0, must be at least 1");
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
  if (has_state) {
    ins.d = decoding.destination(decoding.operand(0), 8);
    ins.count = 1;
  }
  const Decoding::Address address = decoding.address(decoding.operand(memory));
  ins.s[0] = address.row;
  ins.wide = address.wide ? 1 : 0;
  ins.imm = address.offset;
  ins.y = 0;
  decoding.set_own_shared();
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
  if (decoding.has("noComplete")) ins.x |= kNoComplete;
  if (decoding.has("release") && decoding.has("cluster")) ins.x |= kWaitsForLoads;
}

// The clocks of the finished phases go to the warp or, for a relaxed wait, to its next fence. Returns what
// these phases knew of the warp itself.
u32 hear(Warp& w, const Object& at, bool relaxed) {
  Cluster& cluster = *w.cta->cluster;
  if (!relaxed) return cluster.mbarriers.acquire(*at.cta, at.address, w.clock, w.agent);
  w.unfenced_clock.resize(cluster.clock_width);
  (void)cluster.mbarriers.acquire(*at.cta, at.address, w.unfenced_clock.data(), w.agent);
  return 0;
}

// try_wait and test_wait: whether the phase of this parity (or state) is over. try_wait may fail without
// reason, which reveals a program that does not loop. Otherwise the warp sleeps until the phase is over.
void wait(Warp& w, const Ins& i, u32 mask) {
  if (mask == 0) return;
  u32 passed = 0;
  Cluster& cluster = *w.cta->cluster;
  u32 known = ~0U;                        // of the warp, to all lanes: what each barrier knew
  u32 last_address = 0, last_parity = 0;  // lanes that wait for the same phase pass likewise
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
    if (at.cta != w.cta) stop(w, i, FindingKind::illegal, 1u << l, "waits for an mbarrier of another CTA");
    Mbarrier barrier = Mbarrier::load(*at.cta, at.address);
    if (mbarrier_passed(barrier, parity)) {
      if (barrier.unseen) {
        barrier.unseen = false;
        barrier.store(*at.cta, at.address);
      }
      passed |= 1u << l;
      last_address = address;
      last_parity = parity;
      if (ordering(w)) known = std::min(known, hear(w, at, (i.x & kRelaxed) != 0));
      continue;
    }
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
  // All lanes of the warp now know what the barriers knew of them.
  if (ordering(w) && passed == w.everyone()) w.met = std::max(w.met, known);
  w.failures = 0;
  w.set_predicate(i.d, mask, passed);
  if (passed == mask) return;
  // In a loop around test_wait, other warps go first, and so do copies that come late.
  w.polling = true;
  w.yield();
}
void prepare_wait(Decoding& decoding) {
  Ins& ins = decoding.ins;
  ins.x = static_cast<u8>((decoding.match[1] == "test_wait" ? 1 : 0) | (decoding.has("parity") ? 2 : 0) |
                          (decoding.has("relaxed") ? kRelaxed : 0));
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

constexpr OpClass kBar = OpClass::barrier;
const Opcode kRows[] = {
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
};

}  // namespace

std::span<const Opcode> mbarrier_rows() {
  return kRows;
}

}  // namespace flashjit::emulator::portable
