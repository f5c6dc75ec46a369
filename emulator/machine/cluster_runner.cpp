#include "emulator/machine/cluster_runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "emulator/machine/deadlock.hpp"

namespace flashjit::emulator {

void ClusterRunner::run(u64 index) {
  start(index);
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
    // Mostly long turns, sometimes very short ones, so that every interleaving can occur.
    const u32 dice = cluster_.random();
    const int turn_length =
        (dice & 7) == 0 ? 1 + static_cast<int>(dice >> 8 & 7) : 1 + static_cast<int>(dice >> 8) % 500;
    next->budget = turn_length;
    execute(*next);
    if (next->polling) continue;
    // A shorter turn may lie between two reads of a polled word.
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

// A warp that can run; null if there is none. Some seeds have a favourite, or a straggler that has to wait
// for all others: one warp or one warpgroup. So a warp gets a whole turn of a ring ahead, or behind, more
// often than by chance.
Warp* ClusterRunner::choose() {
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

// Lets all polling warps read their word of memory again. Returns one of them; null if there are none.
Warp* ClusterRunner::poll_again() {
  Warp* any = nullptr;
  for (Cta& cta : cluster_.ctas) {
    for (Warp& warp : cta.warps) {
      if (warp.polling) any = &warp;
      warp.polling = false;
    }
  }
  return any;
}

// Only another cluster can write the word that this warp polls.
void ClusterRunner::wait_for_others(Warp& poller) {
  if (launch_.stopped) throw Stop{};
  const bool alone = launch_.at_work <= 1;
  const auto now = std::chrono::steady_clock::now();
  const u64 turns = launch_.turns.load(std::memory_order_relaxed);
  naps_ = turns == turns_ ? naps_ + 1 : 0;
  turns_ = turns;
  if (naps_ == 0) asleep_since_ = now;
  // On a busy machine the awaited cluster may not get to run at once. The naps are counted, because time
  // during which the process was stopped was no waiting.
  if (naps_ > 1000 && (alone || now - asleep_since_ > std::chrono::milliseconds(1500))) {
    stop(poller, program_.code[poller.pc], FindingKind::deadlock, poller.active,
         "waits for a word of memory that nobody writes");
  }
  if (!alone) std::this_thread::sleep_for(std::chrono::microseconds(10) * std::min(naps_ + 1, 50u));
}

// The cases for which the loop stops: an aligned instruction with lanes missing, a rule that the program's
// text breaks, a register that a wgmma still owns, or one that a load may not have filled yet.
void ClusterRunner::inspect(Warp& warp, const Ins& ins, u32 mask) {
  if ((ins.flags & kAligned) != 0 && mask != warp.everyone() && mask != 0) {
    finding(warp, ins, FindingKind::divergence, mask,
            fmt::format("an aligned instruction is reached by lanes 0x{:08x} of 0x{:08x}", mask,
                        warp.everyone()));
  }
  if ((ins.flags & kBreaksRule) != 0 && mask != 0) {
    for (const StaticFinding& found : program_.findings) {
      if (found.ins == index_of(warp, ins)) finding(warp, ins, FindingKind::wgmma_fence, mask, found.message);
    }
  }
  if ((ins.flags & warp.watch & kTouchesAccumulator) != 0 && (ins.flags & kReleasesWarpgroup) == 0 &&
      mask != 0)
    check_in_flight(warp, ins, mask);
  if ((ins.flags & warp.watch & kTouchesLoaded) != 0 && mask != 0) warp.held.look(warp, ins, mask);
}

void ClusterRunner::check_in_flight(Warp& warp, const Ins& ins, u32 mask) {
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
void ClusterRunner::loop(Warp& warp) {
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

void ClusterRunner::execute(Warp& warp) {
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

bool ClusterRunner::may_go_on(Warp& warp) {
  switch (warp.wait) {
    case Wait::mbarrier:
      if (!mbarrier_passed(Mbarrier::load(*warp.wait_cta, warp.wait_address), warp.wait_parity)) return false;
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

void ClusterRunner::finished(Warp& warp) {
  --live_;
  --warp.cta->running;
}

}  // namespace flashjit::emulator
