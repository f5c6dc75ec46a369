// Whether a write to shared memory is ordered after what was done to the same place before.
#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "emulator/machine/machine.hpp"
#include "emulator/machine/shared_state.hpp"
#include "emulator/machine/shared_words.hpp"

namespace flashjit::emulator {
namespace {

// Whether the agent has not seen one of four readers' clocks.
bool reads_are_late(const u32* clocks, const u32* seen_clocks) {
  using Four __attribute__((vector_size(16))) = i32;
  Four read, seen;
  std::memcpy(&read, clocks, sizeof read);
  std::memcpy(&seen, seen_clocks, sizeof seen);
  const Four late = read > seen;
  u64 halves[2];
  std::memcpy(halves, &late, sizeof halves);
  return (halves[0] | halves[1]) != 0;
}

}  // namespace

bool SharedState::has_heard_of(const Agent& agent, const Piece& piece) const {
  const Record& record = piece.record;
  if (agent.clock[record.writer] >= record.clock) return true;
  return agent.clock[agents_ + record.writer] >= record.clock && !was_not_told(piece.marks->write, agent);
}

void SharedState::check_order_of_write(Warp& warp, const Ins& ins, const Agent& agent, Access access,
                                       const Piece& piece) {
  Record& record = piece.record;
  if (record.clock != kNever && !has_heard_of(agent, piece)) {
    finding(warp, ins, FindingKind::race, warp.active,
            fmt::format("writes {} with nothing that orders it after the write by {}", where(piece.address),
                        who(warp, record.writer)));
  }
  check_order_after_reads(warp, ins, agent, access, piece);
}

void SharedState::check_order_after_reads(Warp& warp, const Ins& ins, const Agent& agent, Access access,
                                          const Piece& piece) {
  Record& record = piece.record;
  if (record.readers == 0) return;
  const u32 reader = warp_of(piece.marks->read);
  const bool read_late = (record.readers >> (reader >> 2) & 1) != 0 &&
                         piece.clocks[(reader >> 2) * piece.step + (reader & 3)] >
                             (reader == agent.id ? agent.met : agent.clock[reader]);
  if (read_late && crosses_lanes(piece.marks->read, agent)) {
    finding(warp, ins, FindingKind::race, warp.active,
            fmt::format("writes {}, which {} of the same warp read; bar.warp.sync belongs between",
                        where(piece.address), lane_name(piece.marks->read)));
  }
  const u32* told = agent.clock + agents_;  // by leaders
  if (read_late && was_not_told(piece.marks->read, agent)) {
    finding(warp, ins, FindingKind::race, warp.active,
            fmt::format("writes {}, which {} of {} read; what orders the two, another lane of that warp has "
                        "told, with no bar.warp.sync before",
                        where(piece.address), lane_name(piece.marks->read), who(warp, reader)));
  }
  for (u64 left = record.readers; left != 0; left &= left - 1) {
    const u32 group = static_cast<u32>(std::countr_zero(left)), first = 4 * group;
    const u32* clocks = piece.clocks + group * piece.step;
    if (!reads_are_late(clocks, told + first)) continue;
    for (u32 k = 0; k < 4; ++k) {
      if (first + k == agent.id || clocks[k] <= told[first + k]) continue;
      finding(warp, ins, FindingKind::race, warp.active,
              fmt::format("writes {} with nothing that orders it after the read by {}", where(piece.address),
                          who(warp, first + k)));
      left = 0;
      break;
    }
  }
  overtake(warp, ins, agent, access, piece);
  record.readers = 0;
}

}  // namespace flashjit::emulator
