// cp.async: copies of 4, 8 or 16 bytes per lane, in groups; async_queue.hpp decides when they happen.
#include "emulator/exec/access.hpp"
#include "emulator/machine/lane_copies.hpp"

namespace flashjit::emulator::portable {
namespace {

// Of copies in no group, and of groups that nothing has waited for: more than shared memory has words.
constexpr std::size_t kMost = 65536;

// Ins::x: bytes. s[0]: shared address, with offset `imm`. s[1]: global address, with its offset in
// Ins::rejoin. s[2]: how many bytes to copy, or a predicate to copy none (y: 1 a size is given, 2 a
// predicate).
void copy(Warp& w, const Ins& i, u32 mask) {
  if (mask == 0) return;
  if (w.copies.open.size() == kMost)
    stop(w, i, FindingKind::async_result, mask,
         fmt::format("{} cp.async of the warp are in no group; cp.async.commit_group belongs before", kMost));
  LaneCopies& job = w.copies.open.emplace_back();
  job.ins = &i;
  job.number = w.copies.issued++;
  job.lanes = mask;
  job.size = i.x;
  const u32 ignored = i.y == 2 ? predicate_of(w, i, 2) : 0;
  const i64 offset = static_cast<i32>(i.rejoin);
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const u32 to = shared_address_of(w, i, 0, l);
    const u64 from = w.source<u64>(i.s[1])[l] + static_cast<u64>(offset);
    u32 bytes = i.y == 1 ? w.source<u32>(i.s[2])[l] : (ignored >> l & 1) != 0 ? 0 : i.x;
    if (bytes > i.x)
      stop(w, i, FindingKind::illegal, 1u << l,
           fmt::format("cp.async of {} with a source size of {}", i.x, bytes));
    check_shared(w, i, *w.cta, to, i.x, i.x, static_cast<u32>(l));
    if (bytes != 0) {
      if (from % i.x != 0) check_global(w, i, from, bytes, i.x, static_cast<u32>(l));
      check_global(w, i, from, bytes, 1, static_cast<u32>(l));
      if (checking(w)) check_written(w, i, from, bytes, ~0u, static_cast<u32>(l));
    }
    if (checking(w)) w.cta->state.begin_write(w, i, w.as_agent(l), Access::generic, to, i.x);
    job.to[l] = to;
    job.from[l] = from;
    job.bytes[l] = static_cast<u8>(bytes);
  }
  Cluster& cluster = *w.cta->cluster;
  const AsyncQueue::Policy policy = cluster.queue.policy();
  if (policy == AsyncQueue::Policy::early ||
      (policy != AsyncQueue::Policy::late && (cluster.random() & 1) != 0)) {
    move_lanes(w, job, mask);
    job.done = true;
  }
  if (counting(w)) {
    u64 moved = 0;
    for (u32 m = mask; m != 0; m &= m - 1) moved += job.bytes[std::countr_zero(m)];
    counter_of(w, i).global_read += moved;
    count_shared(w, i, job.to, mask, i.x);
  }
}
void prepare_copy(Decoding& decoding) {
  Ins& ins = decoding.ins;
  const Decoding::Address to = decoding.address(decoding.operand(0)),
                          from = decoding.address(decoding.operand(1));
  ins.s[0] = to.row;
  ins.wide = to.wide ? 1 : 0;
  ins.imm = to.offset;
  if (!from.wide) decoding.fail("a 64-bit global address is expected");
  ins.s[1] = from.row;
  ins.rejoin = static_cast<u32>(static_cast<i32>(from.offset));
  const i64 size = decoding.immediate(2);
  if (size != 4 && size != 8 && size != 16) decoding.fail("cp.async copies 4, 8 or 16 bytes");
  if (decoding.has("cg") && size != 16) decoding.fail("cp.async.cg copies 16 bytes");
  ins.x = static_cast<u8>(size);
  std::size_t next = 3;
  if (decoding.operands() > next && !(decoding.has("L2::cache_hint") && decoding.operands() == 4)) {
    const Operand& operand = decoding.operand(next);
    if (operand.kind == Operand::Kind::reg && decoding.class_of(operand) == RegisterClass::predicate) {
      ins.y = 2;
      ins.s[2] = decoding.predicate(operand);
      if (operand.negated) ins.negate = 4;
    } else {
      ins.y = 1;
      ins.s[2] = decoding.source(operand, false);
    }
  }
}

void commit(Warp& w, const Ins& i, u32 mask) {
  if (mask == 0) return;
  if (w.copies.groups.size() == kMost)
    stop(w, i, FindingKind::async_result, mask,
         fmt::format("{} groups of cp.async were not waited for; cp.async.wait_group belongs before", kMost));
  CopyGroup& group = w.copies.groups.emplace_back();
  group.lanes = mask;
  group.copies.swap(w.copies.open);
  for (LaneCopies& job : group.copies) {
    if ((job.lanes & ~mask) == 0) continue;
    // The part of the other lanes stays open.
    w.copies.open.push_back(job);
    w.copies.open.back().lanes &= ~mask;
    job.lanes &= mask;
  }
}
// Each of these lanes waits for all its groups except the last `kept`.
void wait_for_lanes(Warp& w, u32 mask, i64 kept) {
  std::deque<CopyGroup>& groups = w.copies.groups;
  i64 left[kLanes] = {};  // how many groups each lane has, from the current one on
  for (const CopyGroup& group : groups) {
    for (u32 m = group.lanes & mask; m != 0; m &= m - 1) ++left[std::countr_zero(m)];
  }
  for (CopyGroup& group : groups) {
    u32 due = 0;
    for (u32 m = group.lanes & mask; m != 0; m &= m - 1) {
      const int l = std::countr_zero(m);
      if (left[l]-- > kept) due |= 1u << l;
    }
    for (LaneCopies& job : group.copies) finish_lanes(w, job, due, w.clock);
  }
  forget_finished(w);
}
void wait_group(Warp& w, const Ins& i, u32 mask) {
  if (mask != 0) wait_for_lanes(w, mask, i.imm);
}
void wait_all(Warp& w, const Ins& i, u32 mask) {
  if (mask == 0) return;
  commit(w, i, mask);
  wait_for_lanes(w, mask, 0);
}
void prepare_group(Decoding& decoding) {
  decoding.ins.imm = decoding.operands() == 0 ? 0 : decoding.immediate(0);
}

// cp.async.mbarrier.arrive: arrives at the mbarrier when all earlier cp.async of the lane are done. Ins::x:
// .noinc.
void arrive_when_copied(Warp& w, const Ins& i, u32 mask) {
  if (mask == 0) return;
  w.held.tell(w, i);
  Cluster& cluster = *w.cta->cluster;
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    CopyJob job;
    job.kind = CopyJob::Kind::lane_arrival;
    job.ins = &i;
    job.agent = w.agent;
    job.lane = static_cast<u32>(l);
    job.before = w.copies.issued;
    job.barrier_cta = w.cta;
    job.barrier = shared_address_of(w, i, 0, l);
    check_shared(w, i, *w.cta, job.barrier, 8, 8, job.lane);
    if (checking(w) && !w.cta->state.is_barrier(job.barrier)) {
      stop(w, i, FindingKind::barrier, 1u << l,
           fmt::format("there is no mbarrier at offset {}", job.barrier - kSharedBase));
    }
    // Without .noinc the phase expects this arrival in addition to the others.
    if (i.x == 0) {
      Mbarrier barrier = Mbarrier::load(*w.cta, job.barrier);
      ++barrier.pending;
      barrier.store(*w.cta, job.barrier);
    }
    w.copy_clock(job.clock, cluster.clock_width);
    cluster.queue.issue(cluster, std::move(job));
  }
  w.release();
}
void prepare_arrive_when_copied(Decoding& decoding) {
  decoding.ins.x = decoding.has("noinc") ? 1 : 0;
}

constexpr OpClass kAsync = OpClass::async_copy;
const Opcode kRows[] = {
    {"cp.async.(ca|cg).(shared|shared::cta).global.L2::cache_hint?.(L2::64B|L2::128B|L2::256B)?", "****?*?",
     kAsync, copy, prepare_copy},
    {"cp.async.commit_group", "", kAsync, commit},
    {"cp.async.wait_group", "i", kAsync, wait_group, prepare_group},
    {"cp.async.wait_all", "", kAsync, wait_all},
    {"cp.async.mbarrier.arrive.noinc?.(shared|shared::cta)?.b64", "m", kAsync, arrive_when_copied,
     prepare_arrive_when_copied},
};

}  // namespace

std::span<const Opcode> cp_async_rows() {
  return kRows;
}

}  // namespace flashjit::emulator::portable
