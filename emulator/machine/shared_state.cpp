#include "emulator/machine/shared_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "emulator/machine/machine.hpp"

namespace flashjit::emulator {
namespace {

std::string where(u32 address) {
  return fmt::format("shared memory at offset {}", address - kSharedBase);
}
std::string who(Warp& warp, u32 agent) {
  const Warp& other = warp.cta->cluster->warp_of(agent);
  if (other.cta == warp.cta) return fmt::format("warp {}", other.index);
  return fmt::format("warp {} of CTA {} of the cluster", other.index, other.cta->rank);
}
std::string lane_name(u32 mark) {
  return (mark & 63) >= 32 ? std::string("another lane") : fmt::format("lane {}", mark & 63);
}

}  // namespace

void SharedState::reset(u32 bytes, u32 agents, bool order) {
  granules_ = (bytes + 15) / 16 + 1;
  stride_ = (std::min(agents, kMaxAgents) + 3) / 4 * 4;
  order_ = order;
  records_.assign(granules_, {});
  reader_clocks_.assign(order ? std::size_t{granules_} * stride_ : 0, 0);
  marks_.assign(order ? granules_ : 0, {});
  words_.clear();
  word_clocks_.clear();
  word_marks_.clear();
}

SharedState::Record* SharedState::split(u32 granule) {
  if (words_.empty()) {
    words_.assign(std::size_t{granules_} * 4, {});
    if (order_) {
      word_clocks_.assign(std::size_t{granules_} * 4 * stride_, 0);
      word_marks_.assign(std::size_t{granules_} * 4, {});
    }
  }
  Record& whole = records_[granule];
  Record* parts = &words_[std::size_t{granule} * 4];
  if ((whole.state & kSplit) == 0) {
    for (int k = 0; k < 4; ++k) {
      parts[k] = whole;
      parts[k].written = whole.clock == kNever && (whole.state & kInFlight) == 0 ? 0 : 15;
      if (order_) {
        std::copy_n(&reader_clocks_[std::size_t{granule} * stride_], stride_,
                    &word_clocks_[(std::size_t{granule} * 4 + k) * stride_]);
        word_marks_[std::size_t{granule} * 4 + k] = marks_[granule];
      }
    }
    whole = {.clock = kNever, .writer = 0, .state = kSplit};
  }
  return parts;
}

// Calls visit(piece) for each record that the bytes lie in.
template <class Visit>
void SharedState::for_each(u32 address, u32 bytes, bool force_words, Visit visit) {
  const u32 end = address + bytes;
  for (u32 granule = address >> 4; granule << 4 < end; ++granule) {
    const u32 first = std::max(address, granule << 4), last = std::min(end, (granule + 1) << 4);
    Record& whole = records_[granule];
    if ((whole.state & kSplit) == 0 && last - first == 16 && !force_words) {
      visit(Piece{whole, order_ ? &reader_clocks_[std::size_t{granule} * stride_] : nullptr,
                  order_ ? &marks_[granule] : nullptr, granule << 4, 0xffffu, 0xffffu});
      continue;
    }
    Record* parts = split(granule);
    for (u32 word = first >> 2; word << 2 < last; ++word) {
      const u32 from = std::max(first, word << 2) & 3, to = std::min(last, (word + 1) << 2) - (word << 2);
      const u32 mask = ((1u << to) - 1) & ~((1u << from) - 1);
      visit(Piece{parts[word & 3], order_ ? &word_clocks_[std::size_t{word} * stride_] : nullptr,
                  order_ ? &word_marks_[word] : nullptr, word << 2, mask, 15u});
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
    } else if (record.clock == kNever &&
               (piece.all == 0xffffu || (record.written & piece.mask) != piece.mask)) {
      finding(warp, ins, FindingKind::never_written, warp.active,
              fmt::format("reads {}, which nothing wrote", where(at)));
      record.written = static_cast<u16>(piece.all);
      if (order_ || piece.all == 0xffffu) {
        record.clock = 0;
        record.writer = static_cast<u8>(agent.id);
      }
    } else if (record.clock != kNever && order_ && agent.clock[record.writer] < record.clock) {
      finding(warp, ins, FindingKind::race, warp.active,
              fmt::format("reads {} with nothing that orders it after the write by {}", where(at),
                          who(warp, record.writer)));
      record.clock = 0;
    } else if (access == Access::asynchronous && order_ && (record.state & kGeneric) != 0 &&
               fenced_[record.writer] < record.clock) {
      finding(warp, ins, FindingKind::proxy_fence, warp.active,
              fmt::format("the asynchronous proxy reads {}, which {} wrote with ordinary stores; "
                          "fence.proxy.async belongs between",
                          where(at), who(warp, record.writer)));
      record.state &= static_cast<u8>(~kGeneric);
    } else if (order_ && record.writer == agent.id && crosses_lanes(piece.marks->write, agent)) {
      finding(warp, ins, FindingKind::race, warp.active,
              fmt::format("reads {}, which {} of the same warp wrote; bar.warp.sync belongs between",
                          where(at), lane_name(piece.marks->write)));
      piece.marks->write = 0;
    }
    if (piece.clocks != nullptr) note_reader(record, piece.clocks, agent);
  });
}

void SharedState::note_lane(const Agent& agent, u32 address, u32 bytes) {
  if (!order_) return;
  for_each(address, bytes, false, [&](const Piece& piece) {
    // Of several lanes that read, none is the one that may write.
    piece.marks->read = crosses_lanes(piece.marks->read, agent) ? agent.mark() | 63 : agent.mark();
  });
}

void SharedState::read_matrix(Warp& warp, const Ins& ins, const Agent& agent, u32 first_agent, u32 agents,
                              const u32* nows, u32 address, u32 pattern) {
  Record& record = records_[address >> 4];
  const bool plain = agent.clock[record.writer] >= record.clock &&
                     ((record.state & kGeneric) == 0 || !order_ || fenced_[record.writer] >= record.clock);
  if (!plain) {
    read_slowly(warp, ins, agent, Access::asynchronous, address, 16);
    if ((record.state & kSplit) != 0) return;
  }
  const u32 laid = record.state >> kPatternShift;
  if (laid != 0 && laid != pattern) {
    finding(warp, ins, FindingKind::descriptor, warp.active,
            fmt::format("the descriptor's swizzle is {} bytes, but TMA laid out {} with {}",
                        pattern == 1 ? 0 : 8u << pattern, where(address), laid == 1 ? 0 : 8u << laid));
    record.state &= static_cast<u8>(~kPattern);
  }
  if (!order_) return;
  record.readers |= ((1ull << agents) - 1) << first_agent;
  u32* clocks = &reader_clocks_[std::size_t{address >> 4} * stride_ + first_agent];
  if (agents == 4)
    std::memcpy(clocks, nows, 4 * sizeof(u32));
  else
    std::copy_n(nows, agents, clocks);
}

void SharedState::atomic_access(Warp& warp, const Ins& ins, const Agent& agent, u32 address, u32 bytes) {
  for_each(address, bytes, false, [&](const Piece& piece) {
    Record& record = piece.record;
    if ((record.state & (kInFlight | kBeingRead | kBarrier)) != 0)
      check_state_of_write(warp, ins, record, piece.address);
    if (record.clock == kNever && (record.written & piece.mask) != piece.mask) {
      finding(warp, ins, FindingKind::never_written, warp.active,
              fmt::format("an atomic operation on {}, which nothing wrote", where(piece.address)));
    }
    record.written = static_cast<u16>(piece.all);
    record.writer = static_cast<u8>(agent.id);
    record.state = kGeneric;
    record.clock = order_ ? agent.clock[agent.id] : 0;
    if (order_) piece.marks->write = 0;
  });
}

void SharedState::check_order_of_write(Warp& warp, const Ins& ins, const Agent& agent, const Piece& piece) {
  Record& record = piece.record;
  u32* clocks = piece.clocks;
  if (record.clock != kNever && agent.clock[record.writer] < record.clock) {
    finding(warp, ins, FindingKind::race, warp.active,
            fmt::format("writes {} with nothing that orders it after the write by {}", where(piece.address),
                        who(warp, record.writer)));
  }
  if (record.readers == 0) return;
  if (crosses_lanes(piece.marks->read, agent)) {
    finding(warp, ins, FindingKind::race, warp.active,
            fmt::format("writes {}, which {} of the same warp read; bar.warp.sync belongs between",
                        where(piece.address), lane_name(piece.marks->read)));
  }
  // Four agents at a time; the stride is a multiple of four.
  typedef u32 Four __attribute__((vector_size(16)));
  Four late = {};
  for (u32 k = 0; k < stride_; k += 4) {
    Four read, seen;
    std::memcpy(&read, clocks + k, sizeof read);
    std::memcpy(&seen, agent.clock + k, sizeof seen);
    late |= (Four)(read > seen);
  }
  if ((late[0] | late[1] | late[2] | late[3]) != 0) {
    for (u32 k = 0; k < stride_; ++k) {
      if (k == agent.id || clocks[k] <= agent.clock[k]) continue;
      finding(warp, ins, FindingKind::race, warp.active,
              fmt::format("writes {} with nothing that orders it after the read by {}", where(piece.address),
                          who(warp, k)));
      break;
    }
  }
  for (u32 k = 0; k < stride_; k += 4) {
    const Four zero = {};
    std::memcpy(clocks + k, &zero, sizeof zero);
  }
  record.readers = 0;
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
    if (order_) check_order_of_write(warp, ins, agent, piece);
    record.written |= static_cast<u16>(piece.mask);
    record.writer = static_cast<u8>(agent.id);
    record.state = state_after(access);
    if (piece.all == 0xffffu || (record.written & piece.all) == piece.all)
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
          fenced_[record.writer] < record.clock) {
        finding(warp, ins, FindingKind::proxy_fence, warp.active,
                fmt::format("the asynchronous proxy overwrites {}, which {} wrote with ordinary stores; "
                            "fence.proxy.async belongs between",
                            where(piece.address), who(warp, record.writer)));
      }
      check_order_of_write(warp, ins, agent, piece);
    }
    record.written |= static_cast<u16>(piece.mask);
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
    if (piece.clocks != nullptr) note_reader(piece.record, piece.clocks, agent);
  });
}

void SharedState::make_barrier(Warp& warp, const Ins& ins, const Agent& agent, u32 address) {
  for_each(address, 8, true, [&](const Piece& piece) {
    if ((piece.record.state & (kInFlight | kBeingRead)) != 0)
      check_state_of_write(warp, ins, piece.record, piece.address);
    if (order_) check_order_of_write(warp, ins, agent, piece);
    piece.record = {.clock = kNever, .writer = static_cast<u8>(agent.id), .state = kBarrier, .written = 15};
  });
  // Its words keep the initialiser's clock where readers' clocks of data would be.
  if (order_) word_clocks_[std::size_t{address >> 2} * stride_] = agent.clock[agent.id];
}

void SharedState::forget_barrier(u32 address) {
  for_each(address, 8, true, [&](const Piece& piece) {
    piece.record = {};
    if (piece.clocks == nullptr) return;
    std::memset(piece.clocks, 0, stride_ * sizeof(u32));
    *piece.marks = {};
  });
}

bool SharedState::is_barrier(u32 address) const {
  return (address >> 4) < granules_ && (records_[address >> 4].state & kSplit) != 0 &&
         (words_[address >> 2].state & kBarrier) != 0 && (words_[(address >> 2) + 1].state & kBarrier) != 0;
}

u32 SharedState::barrier_clock(u32 address, u32& writer) const {
  writer = words_[address >> 2].writer;
  return word_clocks_.empty() ? 0 : word_clocks_[std::size_t{address >> 2} * stride_];
}

}  // namespace flashjit::emulator
