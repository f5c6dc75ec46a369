#include "emulator/machine/shared_state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "emulator/machine/machine.hpp"
#include "emulator/machine/shared_words.hpp"

namespace flashjit::emulator {

void SharedState::reset(u32 bytes, u32 agents, bool order) {
  granules_ = (bytes + 15) / 16 + 1;
  agents_ = agents;
  groups_ = (agents + 3) / 4;
  order_ = order;
  records_.assign(granules_, {});
  reader_clocks_.resize(order ? groups_ * whole_step() : 0);
  marks_.assign(order ? granules_ : 0, {});
  late_.reset(order ? granules_ : 0);
  words_.clear();
  word_clocks_.clear();
  word_marks_.clear();
}

std::size_t SharedState::split(u32 granule) {
  Record& whole = records_[granule];
  if ((whole.state & kSplit) != 0) return whole.readers;
  const std::size_t index = words_.size() / 4;
  Record part = whole;
  part.written = whole.clock == kNever && (whole.state & kInFlight) == 0 ? 0 : 15;
  words_.insert(words_.end(), 4, part);
  if (order_) {
    word_marks_.insert(word_marks_.end(), 4, marks_[granule]);
    for (u32 group = 0; group < groups_; ++group) {
      const u32* clocks = &reader_clocks_[group * whole_step() + std::size_t{granule} * 4];
      for (int word = 0; word < 4; ++word) word_clocks_.insert(word_clocks_.end(), clocks, clocks + 4);
    }
  }
  whole = {.clock = kNever, .writer = 0, .state = kSplit, .written = 0, .readers = index};
  return index;
}

// Calls visit(piece) for each record that the bytes lie in.
template <class Visit>
void SharedState::for_each(u32 address, u32 bytes, bool force_words, Visit visit) {
  const u32 end = address + bytes;
  for (u32 granule = address >> 4; granule << 4 < end; ++granule) {
    const u32 first = std::max(address, granule << 4), last = std::min(end, (granule + 1) << 4);
    Record& whole = records_[granule];
    if ((whole.state & kSplit) == 0 && last - first == 16 && !force_words) {
      visit(Piece{whole, order_ ? &reader_clocks_[std::size_t{granule} * 4] : nullptr, whole_step(),
                  order_ ? &marks_[granule] : nullptr, granule << 4, 0xffffu, 0xffffu});
      continue;
    }
    const std::size_t parts = split(granule);
    for (u32 word = first >> 2; word << 2 < last; ++word) {
      const u32 from = std::max(first, word << 2) & 3, to = std::min(last, (word + 1) << 2) - (word << 2);
      const u32 mask = ((1u << to) - 1) & ~((1u << from) - 1);
      const std::size_t index = parts * 4 + (word & 3);
      visit(Piece{words_[index], order_ ? &word_clocks_[(parts * groups_ * 4 + (word & 3)) * 4] : nullptr,
                  kWordStep, order_ ? &word_marks_[index] : nullptr, word << 2, mask, 15u});
    }
  }
}

void SharedState::read_slowly(Warp& warp, const Ins& ins, const Agent& agent, Access access, u32 address,
                              u32 bytes) {
  for_each(address, bytes, false, [&](const Piece& piece) {
    Record& record = piece.record;
    const u32 at = piece.address;
    if ((record.state & kInFlight) != 0) {
      finding(warp, ins, FindingKind::async_result, warp.active,
              fmt::format("reads {}, which an asynchronous copy that was not waited for still writes",
                          where(at)));
    } else if ((record.state & kBarrier) != 0) {
      finding(warp, ins, FindingKind::illegal, warp.active,
              fmt::format("reads the mbarrier in {} as data", where(at)));
    } else if (never_written(piece)) {
      finding(warp, ins, FindingKind::never_written, warp.active,
              fmt::format("reads {}, which nothing wrote", where(at)));
      record.written = static_cast<u8>(piece.all);
      record.clock = 0;
      record.writer = static_cast<u8>(agent.id);
    } else if (order_ && !has_heard_of(agent, piece)) {
      finding(warp, ins, FindingKind::race, warp.active,
              fmt::format("reads {} with nothing that orders it after the write by {}", where(at),
                          who(warp, record.writer)));
      record.clock = 0;
    } else if (access == Access::asynchronous && order_ && (record.state & kGeneric) != 0 &&
               !is_fenced(agent, record)) {
      finding(warp, ins, FindingKind::proxy_fence, warp.active,
              fmt::format("the asynchronous proxy reads {}, which {} wrote with ordinary stores; "
                          "fence.proxy.async belongs between",
                          where(at), who(warp, record.writer)));
      record.state &= static_cast<u8>(~kGeneric);
    } else if (order_ && record.writer == agent.id && record.clock > agent.met &&
               crosses_lanes(piece.marks->write, agent)) {
      finding(warp, ins, FindingKind::race, warp.active,
              fmt::format("reads {}, which {} of the same warp wrote; bar.warp.sync belongs between",
                          where(at), lane_name(piece.marks->write)));
      piece.marks->write = kNoLane;
    }
    if (piece.clocks != nullptr) note_reader(record, piece.clocks, piece.step, agent);
  });
}

void SharedState::note_lane(const Agent& agent, u32 address, u32 bytes) {
  if (!order_) return;
  for_each(address, bytes, false, [&](const Piece& piece) {
    // After several lanes have read, none of them may write without a barrier.
    piece.marks->read = crosses_lanes(piece.marks->read, agent) ? agent.mark() | kManyLanes : agent.mark();
  });
}

void SharedState::note_late(const std::shared_ptr<LateLoad>& load, u32 agent, u32 address) {
  for_each(address, load->bytes, false, [&](const Piece& piece) {
    const u32 group = agent >> 2;
    const bool read_since = (piece.record.readers >> group & 1) != 0 &&
                            piece.clocks[group * piece.step + (agent & 3)] >= load->clock;
    // If the bytes were overwritten meanwhile, that write came after the load, or was reported as a race.
    if (read_since) late_.add(piece.address >> 4, in_granule(piece), load);
  });
}

bool SharedState::read_matrix_slowly(Warp& warp, const Ins& ins, const MatrixRead& read, u32 granule) {
  Record& record = records_[granule];
  const bool plain = read.agent.clock[record.writer] >= record.clock &&
                     ((record.state & kGeneric) == 0 || !order_ || is_fenced(read.agent, record));
  if (!plain) {
    read_slowly(warp, ins, read.agent, Access::asynchronous, granule << 4, 16);
    if ((record.state & kSplit) != 0) return false;
  }
  const u32 laid = record.state >> kPatternShift;
  if (laid != 0 && laid != read.pattern) {
    const auto width = [](u32 pattern) { return pattern == 1 ? 0 : 8u << pattern; };
    finding(warp, ins, FindingKind::descriptor, warp.active,
            fmt::format("the descriptor's swizzle is {} bytes, but TMA laid out {} with {}",
                        width(read.pattern), where(granule << 4), width(laid)));
    record.state &= static_cast<u8>(~kPattern);
  }
  return true;
}

void SharedState::atomic_access(Warp& warp, const Ins& ins, const Agent& agent, u32 address, u32 bytes) {
  for_each(address, bytes, true, [&](const Piece& piece) {
    Record& record = piece.record;
    if ((record.state & (kInFlight | kBeingRead | kBarrier)) != 0)
      check_state_of_write(warp, ins, record, piece.address);
    if (never_written(piece)) {
      finding(warp, ins, FindingKind::never_written, warp.active,
              fmt::format("an atomic operation on {}, which nothing wrote", where(piece.address)));
    }
    if (order_ && record.atomic) check_order_after_reads(warp, ins, agent, Access::generic, piece);
    if (order_ && !record.atomic) check_order_of_write(warp, ins, agent, Access::generic, piece);
    record.written = static_cast<u8>(piece.all);
    record.atomic = true;
    record.writer = static_cast<u8>(agent.id);
    record.state = kGeneric;
    record.clock = order_ ? agent.clock[agent.id] : 0;
    if (order_) piece.marks->write = kNoLane;
  });
}

void SharedState::check_state_of_write(Warp& warp, const Ins& ins, Record& record, u32 at) {
  if ((record.state & kInFlight) != 0) {
    finding(warp, ins, FindingKind::async_result, warp.active,
            fmt::format("overwrites {}, which an asynchronous copy still writes", where(at)));
  }
  if ((record.state & kBeingRead) != 0) {
    finding(warp, ins, FindingKind::async_result, warp.active,
            fmt::format("overwrites {}, which an asynchronous store still reads; "
                        "cp.async.bulk.wait_group.read belongs before",
                        where(at)));
  }
  if ((record.state & kBarrier) != 0) {
    finding(warp, ins, FindingKind::illegal, warp.active,
            fmt::format("overwrites the mbarrier in {}", where(at)));
  }
  record.state &= static_cast<u8>(~(kInFlight | kBeingRead | kBarrier));
}

void SharedState::write_slowly(Warp& warp, const Ins& ins, const Agent& agent, Access access, u32 address,
                               u32 bytes) {
  for_each(address, bytes, false, [&](const Piece& piece) {
    Record& record = piece.record;
    if ((record.state & (kInFlight | kBeingRead | kBarrier)) != 0)
      check_state_of_write(warp, ins, record, piece.address);
    if (order_) check_order_of_write(warp, ins, agent, access, piece);
    record.written |= static_cast<u8>(piece.mask);
    record.atomic = false;
    record.writer = static_cast<u8>(agent.id);
    record.state = state_after(access);
    record.clock = order_ ? agent.clock[agent.id] : 0;
    if (order_) piece.marks->write = agent.mark();
  });
}

void SharedState::begin_write(Warp& warp, const Ins& ins, const Agent& agent, Access access, u32 address,
                              u32 bytes) {
  for_each(address, bytes, false, [&](const Piece& piece) {
    Record& record = piece.record;
    if ((record.state & (kInFlight | kBeingRead | kBarrier)) != 0)
      check_state_of_write(warp, ins, record, piece.address);
    if (order_) {
      if (access == Access::asynchronous && (record.state & kGeneric) != 0 && record.clock != kNever &&
          !is_fenced(agent, record)) {
        finding(warp, ins, FindingKind::proxy_fence, warp.active,
                fmt::format("the asynchronous proxy overwrites {}, which {} wrote with ordinary stores; "
                            "fence.proxy.async belongs between",
                            where(piece.address), who(warp, record.writer)));
      }
      check_order_of_write(warp, ins, agent, access, piece);
    }
    record.written |= static_cast<u8>(piece.mask);
    record.atomic = false;
    record.writer = static_cast<u8>(agent.id);
    record.state = kInFlight;
    record.clock = kNever;
  });
}

void SharedState::finish_write(const Agent& agent, Access access, u32 address, u32 bytes, u32 pattern) {
  for_each(address, bytes, false, [&](const Piece& piece) {
    Record& record = piece.record;
    record.writer = static_cast<u8>(agent.id);
    record.state = static_cast<u8>(state_after(access) | pattern << kPatternShift);
    record.clock = order_ ? agent.clock[agent.id] : 0;
    if (order_) piece.marks->write = agent.mark();
  });
}

void SharedState::begin_read(Warp& warp, const Ins& ins, const Agent& agent, u32 address, u32 bytes) {
  read_slowly(warp, ins, agent, Access::asynchronous, address, bytes);
  for_each(address, bytes, false, [&](const Piece& piece) { piece.record.state |= kBeingRead; });
}

void SharedState::finish_read(const Agent& agent, u32 address, u32 bytes) {
  for_each(address, bytes, false, [&](const Piece& piece) {
    piece.record.state &= static_cast<u8>(~kBeingRead);
    if (piece.clocks != nullptr) note_reader(piece.record, piece.clocks, piece.step, agent);
  });
}

void SharedState::make_barrier(Warp& warp, const Ins& ins, const Agent& agent, u32 address) {
  for_each(address, 8, true, [&](const Piece& piece) {
    if ((piece.record.state & (kInFlight | kBeingRead)) != 0)
      check_state_of_write(warp, ins, piece.record, piece.address);
    if (order_) check_order_of_write(warp, ins, agent, Access::generic, piece);
    piece.record = {.clock = kNever, .writer = static_cast<u8>(agent.id), .state = kBarrier, .written = 15};
  });
  // Its first word keeps the initialiser's clock, in the place of the readers' clocks.
  if (order_)
    word_clocks_[records_[address >> 4].readers * groups_ * 16 + std::size_t{address >> 2 & 3} * 4] =
        agent.clock[agent.id];
}

void SharedState::forget_barrier(u32 address) {
  for_each(address, 8, true, [&](const Piece& piece) {
    piece.record = {};
    if (piece.marks != nullptr) *piece.marks = {};
  });
}

bool SharedState::is_barrier(u32 address) const {
  if ((address >> 4) >= granules_ || (records_[address >> 4].state & kSplit) == 0) return false;
  const Record* words = &words_[records_[address >> 4].readers * 4 + (address >> 2 & 3)];
  return (words[0].state & words[1].state & kBarrier) != 0;
}

u32 SharedState::barrier_clock(u32 address, u32& writer) const {
  const std::size_t index = records_[address >> 4].readers, word = address >> 2 & 3;
  writer = words_[index * 4 + word].writer;
  return order_ ? word_clocks_[index * groups_ * 16 + word * 4] : 0;
}

}  // namespace flashjit::emulator
