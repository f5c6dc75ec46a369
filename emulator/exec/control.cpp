// Branches, the reconvergence of diverged lanes, exits, and hints that change nothing here.
#include "emulator/exec/access.hpp"

namespace flashjit::emulator::portable {
namespace {

// Takes the next group of lanes off the stack; false if there is none left.
bool resume(Warp& w) {
  while (!w.stack.empty()) {
    const Divergence next = w.stack.back();
    w.stack.pop_back();
    const u32 mask = next.mask & ~w.exited;
    if (mask == 0) continue;
    w.pc = next.pc;
    w.rejoin = next.rejoin;
    w.active = mask;
    return true;
  }
  return false;
}

// At the start of a block where diverged lanes meet again.
void join(Warp& w, const Ins& i, u32) {
  if (w.rejoin == index_of(w, i)) resume(w);
}

// Splits the active lanes into two groups: one goes on at `to` now, and the other waits. All lanes wait for
// each other at the rejoin point.
void diverge(Warp& w, const Ins& i, u32 taken, u32 to) {
  const u32 others = w.active & ~taken;
  if (w.rejoin != i.rejoin || i.rejoin == kNoTarget) {
    w.stack.push_back({i.rejoin, w.rejoin, i.rejoin == kNoTarget ? 0 : w.active});
  }
  w.stack.push_back({w.pc, i.rejoin, others});
  w.active = taken;
  w.rejoin = i.rejoin;
  w.pc = to;
}

void branch(Warp& w, const Ins& i, u32 mask) {
  if (mask == 0) return;
  if (mask == w.active) {
    w.pc = i.target;
    return;
  }
  diverge(w, i, mask, i.target);
}

void branch_indexed(Warp& w, const Ins& i, u32 mask) {
  const u32* targets = &w.cta->launch->program->lists[i.list];
  const u32* index = w.source<u32>(i.s[0]);
  // Splits the lanes into groups with one target each; the last group goes on now.
  const u32 here = w.pc;
  u32 rest = mask;
  bool first = true;
  while (rest != 0) {
    const int lane = std::countr_zero(rest);
    if (index[lane] >= i.z)
      stop(w, i, FindingKind::illegal, 1u << lane,
           fmt::format("brx.idx with index {} of {} targets", index[lane], i.z));
    u32 same = 0;
    for (u32 m = rest; m != 0; m &= m - 1)
      same |= index[std::countr_zero(m)] == index[lane] ? 1u << std::countr_zero(m) : 0;
    const u32 target = targets[index[lane]];
    rest &= ~same;
    if (rest == 0 && first && same == w.active) {
      w.pc = target;
      return;
    }
    if (first) {
      w.stack.push_back({i.rejoin, w.rejoin, i.rejoin == kNoTarget ? 0 : w.active});
      if (mask != w.active) w.stack.push_back({here, i.rejoin, w.active & ~mask});
      first = false;
    }
    w.stack.push_back({target, i.rejoin, same});
  }
  if (!first) resume(w);
}

void leave(Warp& w, const Ins& i, u32 mask) {
  if (mask == 0) return;
  w.exited |= mask;
  w.active &= ~mask;
  settle_cluster_barrier(*w.cta->cluster);
  if (w.active != 0) return;
  if (resume(w)) return;
  if (checking(w) && w.cta->cluster->queue.has_store_of(w.agent)) {
    finding(w, i, FindingKind::async_result, w.exited,
            "the warp exits while its bulk store still reads shared memory; cp.async.bulk.wait_group.read "
            "belongs before");
  }
  if (checking(w) && w.cta->running == 1 && w.cta->cluster->queue.moves_for(*w.cta->cluster, *w.cta)) {
    finding(
        w, i, FindingKind::async_result, w.exited,
        "the CTA exits while a copy to or from its shared memory is on its way; a wait for the mbarrier that "
        "it completes belongs before");
  }
  if (checking(w)) {
    for (const Warp& other : warpgroup_of(w)) {
      if (other.register_changes > w.register_changes) {
        finding(w, i, FindingKind::divergence, w.exited,
                "the warp exits without the setmaxnreg that another warp of its warpgroup has executed");
        break;
      }
    }
  }
  w.wait = Wait::finished;
  settle_barriers(*w.cta);
  w.yield();
}

void trap(Warp& w, const Ins& i, u32 mask) {
  if (mask != 0) stop(w, i, FindingKind::illegal, mask, "the kernel executed trap");
}

// setmaxnreg: registers go to the CTA's pool, or come from the pool once other warps have given them up. All
// warps of a warpgroup execute the same setmaxnreg, and meet before the next one (PTX ISA, "setmaxnreg").
void note_change(Warp& w, const Ins& i, u32 mask) {
  if (!checking(w)) return;
  const std::span<Warp> group = warpgroup_of(w);
  if (group.size() != 4)
    stop(w, i, FindingKind::illegal, mask, "setmaxnreg needs all four warps of the warpgroup");
  ++w.register_changes;
  w.register_change = &i;
  for (const Warp& other : group) {
    const u32 behind = w.register_changes - std::min(w.register_changes, other.register_changes);
    const bool differs = other.register_changes == w.register_changes && other.register_change != &i;
    if (differs || behind > 1 || (behind == 1 && other.wait == Wait::finished)) {
      finding(w, i, FindingKind::divergence, mask,
              fmt::format("warp {} of the warpgroup has not executed the same setmaxnreg", other.index));
      return;
    }
  }
}
void give_registers(Warp& w, const Ins& i, u32 mask) {
  if (mask == 0) return;
  const u32 kept = static_cast<u32>(i.imm);
  if (checking(w) && kept > w.registers) {
    finding(w, i, FindingKind::illegal, mask,
            fmt::format("setmaxnreg.dec to {} registers; the warp has {}", kept, w.registers));
  }
  note_change(w, i, mask);
  if (kept >= w.registers) return;
  w.cta->pool += (w.registers - kept) * kLanes;
  w.registers = kept;
}
void take_registers(Warp& w, const Ins& i, u32 mask) {
  if (mask == 0) return;
  w.wanted_registers = static_cast<u32>(i.imm);
  if (w.wanted_registers > w.registers && !registers_ready(w)) {
    w.wait = Wait::registers;
    --w.pc;
    w.yield();
    return;
  }
  // ptxas decides how many registers a warp starts with; here it is the most that a warp can have.
  if (checking(w) && w.register_changes != 0 && w.wanted_registers < w.registers) {
    finding(w, i, FindingKind::illegal, mask,
            fmt::format("setmaxnreg.inc to {} registers; the warp has {}", w.wanted_registers, w.registers));
  }
  note_change(w, i, mask);
  if (w.wanted_registers <= w.registers) return;
  w.cta->pool -= (w.wanted_registers - w.registers) * kLanes;
  w.registers = w.wanted_registers;
}
void prepare_registers(Decoding& decoding) {
  const i64 count = decoding.immediate(0);
  if (count < 24 || count > 256 || count % 8 != 0)
    decoding.fail(fmt::format("setmaxnreg of {}, may be 24 to 256 in steps of 8", count));
  decoding.ins.imm = count;
}

// Prefetches, nanosleep and hints: they don't affect a kernel's results.
void nothing(Warp&, const Ins&, u32) {}

constexpr OpClass kControl = OpClass::control;
const Opcode kRows[] = {
    {"-join", "", kControl, join},
    {"-end", "", kControl, leave, nullptr, kOpExit},
    {"bra.uni?", "", kControl, branch},
    {"brx.idx.uni?", "s", kControl, branch_indexed},
    {"ret.uni?", "", kControl, leave, nullptr, kOpExit},
    {"exit", "", kControl, leave, nullptr, kOpExit},
    {"trap", "", kControl, trap},
    {"brkpt", "", kControl, trap},
    {"nanosleep.u32", "s", kControl, nothing},
    {"setmaxnreg.dec.sync.aligned.u32", "i", kControl, give_registers, prepare_registers, kOpAligned},
    {"setmaxnreg.inc.sync.aligned.u32", "i", kControl, take_registers, prepare_registers, kOpAligned},
    {"griddepcontrol.(launch_dependents|wait)", "", kControl, nothing},
    {"prefetch.(global|local)?.(L1|L2)", "m", kControl, nothing},
    {"prefetch.(global|local)?.(L2::evict_last|L2::evict_normal)", "m", kControl, nothing},
    {"prefetch.(param|const)?.tensormap", "m", kControl, nothing},
    {"prefetchu.L1", "m", kControl, nothing},
    {"cp.async.bulk.prefetch.tensor.(1d|2d|3d|4d|5d).L2.(global)?.tile?.L2::cache_hint?", "*S?", kControl,
     nothing},
    {"cp.async.bulk.prefetch.L2.global.L2::cache_hint?", "msS?", kControl, nothing},
    {"createpolicy.fractional.(L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged).(L2::"
     "evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged)?.b64",
     "Ds?", kControl, nothing},
    {"discard.global.L2", "mi", kControl, nothing},
    {"applypriority.global.L2::evict_normal", "mi", kControl, nothing},
};

}  // namespace

std::span<const Opcode> control_rows() {
  return kRows;
}

}  // namespace flashjit::emulator::portable
