// Reports, and the slow paths of the address checks.
#include "emulator/machine/machine.hpp"

#include <fmt/format.h>

namespace flashjit::emulator {

void finding(const Warp& warp, const Ins& ins, FindingKind kind, u32 lanes, std::string message) {
  Report& report = *warp.cta->launch->report;
  report.add(kind, warp.cta->id, static_cast<int>(warp.index), lanes, index_of(warp, ins),
             std::move(message));
  if (report.full()) throw Stop{};
}

void stop(const Warp& warp, const Ins& ins, FindingKind kind, u32 lanes, std::string message) {
  warp.cta->launch->report->add(kind, warp.cta->id, static_cast<int>(warp.index), lanes, index_of(warp, ins),
                                std::move(message));
  throw Stop{};
}

void check_running(const Warp& warp, const Ins& ins, const Cta& cta) {
  if (cta.running != 0) return;
  stop(warp, ins, FindingKind::freed_memory, warp.active,
       fmt::format("shared memory of CTA {} of the cluster, which has exited; barrier.cluster belongs before "
                   "its end",
                   cta.rank));
}

Cta& cta_of(Warp& warp, const Ins& ins, u32& address) {
  const u32 rank = address >> kRankShift;
  if (rank == 0) return *warp.cta;
  Cluster& cluster = *warp.cta->cluster;
  if ((ins.flags & kOwnShared) != 0) {
    stop(warp, ins, FindingKind::out_of_bounds, warp.active,
         fmt::format("address 0x{:x} names CTA {} of the cluster; without .shared::cluster it must be one of "
                     "the CTA's own",
                     address, rank - 1));
  }
  if (rank > cluster.ctas.size()) {
    stop(warp, ins, FindingKind::out_of_bounds, warp.active,
         fmt::format("address 0x{:x} names CTA {} of a cluster of {}", address, rank - 1,
                     cluster.ctas.size()));
  }
  address &= kOffsetMask;
  Cta& cta = cluster.ctas[rank - 1];
  check_running(warp, ins, cta);
  return cta;
}

void check_shared_slowly(const Warp& warp, const Ins& ins, const Cta& cta, u32 address, u64 bytes, u32 align,
                         u32 lane) {
  const bool inside = address >= kSharedBase && address + bytes <= cta.shared_end;
  if (inside && (address & (align - 1)) == 0) return;
  // Messages count addresses from the start of the CTA's shared memory.
  const i64 offset = i64{address} - kSharedBase;
  const u32 size = cta.shared_end - kSharedBase;
  if (!inside) {
    stop(warp, ins, FindingKind::out_of_bounds, 1u << lane,
         fmt::format("{} bytes of shared memory at offset {}; the CTA has {} bytes", bytes, offset, size));
  }
  stop(warp, ins, FindingKind::misaligned, 1u << lane,
       fmt::format("shared memory at offset {}, which is no multiple of {}", offset, align));
}

void check_global_slowly(Warp& warp, const Ins& ins, u64 address, u32 bytes, u32 align, u32 lane) {
  if ((address & (align - 1)) != 0) {
    stop(warp, ins, FindingKind::misaligned, 1u << lane,
         fmt::format("global address 0x{:x} is no multiple of {}", address, align));
  }
  const LaunchContext& launch = *warp.cta->launch;
  const Program& program = *launch.program;
  const u64 globals = reinterpret_cast<u64>(program.globals.data());
  if (address >= globals && address - globals <= program.globals.size() &&
      bytes <= program.globals.size() - (address - globals)) {
    warp.known = nullptr;
    warp.known_begin = globals;
    warp.known_end = globals + program.globals.size();
    return;
  }
  Allocation* allocation = launch.memory->find(address);
  if (allocation == nullptr || bytes > allocation->end - address) {
    stop(warp, ins, FindingKind::out_of_bounds, 1u << lane,
         "global memory: " + launch.memory->explain(address, bytes));
  }
  if (allocation->freed) {
    stop(warp, ins, FindingKind::freed_memory, 1u << lane,
         "global memory: " + launch.memory->explain(address, bytes));
  }
  warp.known = allocation;
  warp.known_begin = allocation->begin;
  warp.known_end = allocation->end;
}

void check_written(Warp& warp, const Ins& ins, u64 address, u32 bytes, u64 used, u32 lane) {
  Allocation* allocation = warp.known;
  if (allocation == nullptr || !allocation->track) return;
  const u64 need = bytes == 64 ? used : used & ((1ull << bytes) - 1);
  const u64 missing = need & ~allocation->bits(address, bytes);
  if (missing == 0) return;
  finding(warp, ins, FindingKind::never_written, 1u << lane,
          fmt::format("reads global memory that nothing wrote: {}",
                      warp.cta->launch->memory->explain(address, bytes)));
  allocation->mark(address, bytes);  // one report is enough
}

}  // namespace flashjit::emulator
