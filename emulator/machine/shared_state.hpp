// What is known of each piece of shared memory: when and by whom it was written, who has read it since, and
// whether a copy is in flight.
//
// Races are found with vector clocks (Flanagan and Freund, "FastTrack"). Every warp counts its own releases,
// and keeps for every other warp the count with which it has synchronised. A read is ordered if the reader
// has synchronised with the writer's count; a write, if it has synchronised with all reads and with the
// previous write. One record stands for 16 bytes; the first narrower access splits it into four records of 4
// bytes.
//
// Within a warp, a mark tells which lane accessed last, and at which of the warp's clocks. Lanes are ordered
// by what all of them wait for (bar.warp.sync, barriers), and by nothing else: shuffles, votes and stmatrix
// keep them together, but make no lane's writes visible to another lane. (What ldmatrix reads has been read
// when any lane goes on: it "waits until all threads in the warp execute the same ldmatrix", says the PTX
// ISA.) So lanes that exchange data without such ordering are found. So is a lane that tells other warps, by
// arriving at an mbarrier, what the rest of its warp may not have done yet: such a leader has a clock of its
// own.
#pragma once

#include <cstring>
#include <vector>

#include "emulator/machine/late_loads.hpp"
#include "emulator/program.hpp"

namespace flashjit::emulator {

struct Warp;
struct Cta;

// Warps of a cluster: eight CTAs of 1024 threads, which every GPU with clusters supports.
inline constexpr u32 kMaxAgents = 256;
// Clocks are compared four at a time, so this many more must be readable after the last agent's.
inline constexpr u32 kClockPadding = 3;
inline constexpr u8 kNoLeader = 64, kManyLeaders = 65;  // instead of a lane
inline constexpr u32 kMarkShift = 14;  // the clock's place in a mark, above 8 bits of a warp and 6 of a lane
// The lane of an access, besides 0 to 31: a whole warp, no lane (asynchronous), reads by several lanes.
inline constexpr u32 kWholeWarp = 32, kNoLane = 62, kManyLanes = 63;

// Who accesses: a warp, or an asynchronous operation with its warp's clocks at the issue.
struct Agent {
  u32 id = 0;                  // which warp of the cluster
  const u32* clock = nullptr;  // what it has synchronised with: all agents, all leaders, all fences
  u32 lane = kNoLane;          // kWholeWarp: all lanes together, as in stmatrix
  u32 met = ~0u;               // the warp's own clock up to which its lanes are ordered

  [[nodiscard]] u64 mark() const { return u64{clock[id]} << kMarkShift | id << 6 | lane; }
};

enum class Access : u8 {
  generic,       // ordinary loads and stores, ldmatrix, cp.async: they see each other without a fence
  asynchronous,  // TMA, bulk copies, wgmma: the asynchronous proxy
  remote,        // st.async: needs no fence before it, as a store, and queues behind no load, as a copy
};

class SharedState {
 public:
  // For a new CTA, in which nothing is written. `order`: keep clocks, so that races and missing proxy fences
  // are found.
  void reset(u32 bytes, u32 agents, bool order);

  // A complete read or write of address .. address + bytes: in bounds, aligned to its size, 1 to 16 bytes.
  void read(Warp& warp, const Ins& ins, const Agent& agent, Access access, u32 address, u32 bytes) {
    if (bytes == 16 && (address & 15) == 0) {
      const u32 granule = address >> 4;
      Record& record = records_[granule];
      if (agent.clock[record.writer] >= record.clock &&
          (access == Access::generic || (record.state & kGeneric) == 0) &&
          (record.writer != agent.id || record.clock <= agent.met)) {
        if (order_) note_reader(record, &reader_clocks_[std::size_t{granule} * 4], whole_step(), agent);
        return;
      }
    }
    read_slowly(warp, ins, agent, access, address, bytes);
  }
  void write(Warp& warp, const Ins& ins, const Agent& agent, Access access, u32 address, u32 bytes) {
    if (bytes == 16 && (address & 15) == 0) {
      const u32 granule = address >> 4;
      Record& record = records_[granule];
      if ((record.state & ~kGeneric) == 0 && record.readers == 0 &&
          agent.clock[record.writer] >= record.clock) {
        record.writer = static_cast<u8>(agent.id);
        record.clock = order_ ? agent.clock[agent.id] : 0;
        record.state = state_after(access);
        if (order_) marks_[granule].write = agent.mark();
        return;
      }
    }
    write_slowly(warp, ins, agent, access, address, bytes);
  }
  // A lane has read the bytes for itself: no other lane of its warp may write them before the warp's next
  // barrier.
  void note_lane(const Agent& agent, u32 address, u32 bytes);
  // A read by wgmma of `pieces` of 16 bytes. The agent is what the read must be ordered with. The readers are
  // several warps, each at its own clock.
  struct MatrixRead {
    Agent agent;
    u32 first = 0;  // reader
    u32 count = 0;
    const u32* nows = nullptr;
    u32 pattern = 0;  // the one that the descriptor expects: bits of swizzle plus one
  };
  void read_matrix(Warp& warp, const Ins& ins, const MatrixRead& read, u32 address, u32 pieces) {
    const bool four = read.count == 4 && (read.first & 3) == 0;
    const u32 first = address >> 4;
    for (u32 granule = first; granule < first + pieces; ++granule) {
      Record& record = records_[granule];
      const bool plain =
          read.agent.clock[record.writer] >= record.clock && record.state == read.pattern << kPatternShift;
      if (!plain && !read_matrix_slowly(warp, ins, read, granule)) continue;
      if (!order_) continue;
      u32* clocks = &reader_clocks_[std::size_t{granule} * 4];
      if (four) {
        record.readers |= 1ull << (read.first >> 2);
        std::memcpy(clocks + (read.first >> 2) * whole_step(), read.nows, 4 * sizeof(u32));
      } else {
        for (u32 k = 0; k < read.count; ++k)
          note_reader(record, clocks, whole_step(), read.first + k, read.nows[k]);
      }
    }
  }
  // An atomic operation of a lane. It needs no order after other atomics, but after what else was done to the
  // word.
  void atomic_access(Warp& warp, const Ins& ins, const Agent& agent, u32 address, u32 bytes);

  // Others are told of the agent's load from the address before anything has used its result.
  void note_late(const std::shared_ptr<LateLoad>& load, u32 agent, u32 address);

  // A copy that will write the bytes was issued. finish_write says that it has written them, and in which
  // pattern (bits of swizzle plus one; 0: not known). Until then nothing may touch them.
  void begin_write(Warp& warp, const Ins& ins, const Agent& agent, Access access, u32 address, u32 bytes);
  void finish_write(const Agent& agent, Access access, u32 address, u32 bytes, u32 pattern = 0);
  // From now on an asynchronous store reads the bytes: nothing may write them until finish_read.
  void begin_read(Warp& warp, const Ins& ins, const Agent& agent, u32 address, u32 bytes);
  void finish_read(const Agent& agent, u32 address, u32 bytes);

  void make_barrier(Warp& warp, const Ins& ins, const Agent& agent, u32 address);  // mbarrier.init
  void forget_barrier(u32 address);                                                // mbarrier.inval
  [[nodiscard]] bool is_barrier(u32 address) const;
  [[nodiscard]] u32 barrier_clock(u32 address, u32& writer) const;  // when and by whom it was initialised

  // Per agent of the cluster: the lane that arrives for it.
  void set_leaders(const u8* leaders) { leaders_ = leaders; }

 private:
  enum State : u8 { kGeneric = 1, kInFlight = 2, kBeingRead = 4, kBarrier = 8, kSplit = 16, kPattern = 0xe0 };
  static constexpr u32 kPatternShift = 5;
  static constexpr u8 state_after(Access access) {
    return access == Access::asynchronous ? u8{0} : u8{kGeneric};
  }
  static constexpr u32 kNever = ~0u;  // no clock reaches it: not written, in flight, split, or a barrier

  struct Record {
    u32 clock = kNever;  // of the last write
    u8 writer = 0;
    u8 state = 0;
    u8 written = 0;       // a bit per byte of a word; a whole piece is written at once, and then has a clock
    bool atomic = false;  // the last write was an atomic operation; only words have these
    // A bit for each group of four agents of which one has read since the last write. In a split record: the
    // index of its four records in words_.
    u64 readers = 0;
  };
  static_assert(sizeof(Record) == 16);

  // Agent::mark of the last write and of the last read.
  struct Marks {
    u64 write = kNoLane, read = kNoLane;
  };
  // What for_each visits: the record of a whole piece, or of one of its words.
  struct Piece {
    Record& record;
    u32* clocks;       // of readers; null if no order is kept, and so are the marks
    std::size_t step;  // from the clocks of one group of four readers to those of the next
    Marks* marks;
    u32 address;
    u32 mask, all;  // the bytes of the piece that are accessed, and all that it has
  };

  static u32 warp_of(u64 mark) { return mark >> 6 & 255; }
  static bool is_after(u64 mark, u32 clock) { return mark >> kMarkShift > clock; }
  // Whether another lane of the same warp left the mark, and nothing has ordered the two lanes since.
  static bool crosses_lanes(u64 mark, const Agent& agent) {
    return agent.lane != kNoLane && (mark & 63) != kNoLane && warp_of(mark) == agent.id &&
           is_after(mark, agent.met) && ((mark & 63) != agent.lane || agent.lane == kWholeWarp);
  }
  // Whether a lane other than its warp's leader left the mark, and the agent knows of nothing since. The
  // leader's own accesses have been told.
  [[nodiscard]] bool was_not_told(u64 mark, const Agent& agent) const {
    const u32 warp = warp_of(mark);
    return warp != agent.id && (mark & 63) != kNoLane && (mark & 63) != leaders_[warp] &&
           leaders_[warp] != kManyLeaders && is_after(mark, agent.clock[warp]);
  }
  static bool never_written(const Piece& piece) {
    return piece.all == 0xffffu ? piece.record.clock == kNever
                                : (piece.record.written & piece.mask) != piece.mask;
  }
  // The accessed bytes of the piece, as bits of its 16-byte granule.
  static u32 in_granule(const Piece& piece) { return piece.mask << (piece.address & 12); }
  // Whether the agent has synchronised with a fence.proxy.async that came after the write.
  [[nodiscard]] bool is_fenced(const Agent& agent, const Record& record) const {
    return agent.clock[2 * agents_ + record.writer] >= record.clock;
  }
  // Whether the agent has synchronised with the write of the piece, through its warp's leader or the whole
  // warp.
  [[nodiscard]] bool has_heard_of(const Agent& agent, const Piece& piece) const;
  static void note_reader(Record& record, u32* clocks, std::size_t step, u32 id, u32 clock) {
    u32* four = clocks + (id >> 2) * step;
    const u64 bit = 1ull << (id >> 2);
    if ((record.readers & bit) == 0) std::memset(four, 0, 4 * sizeof(u32));
    record.readers |= bit;
    four[id & 3] = clock;
  }
  static void note_reader(Record& record, u32* clocks, std::size_t step, const Agent& agent) {
    note_reader(record, clocks, step, agent.id, agent.clock[agent.id]);
  }
  [[nodiscard]] std::size_t whole_step() const { return std::size_t{granules_} * 4; }
  static constexpr std::size_t kWordStep = 16;
  std::size_t split(u32 granule);  // the index of its four records in words_
  template <class Visit>
  void for_each(u32 address, u32 bytes, bool force_words, Visit visit);
  void read_slowly(Warp& warp, const Ins& ins, const Agent& agent, Access access, u32 address, u32 bytes);
  // Returns whether a granule's readers still have to be noted.
  bool read_matrix_slowly(Warp& warp, const Ins& ins, const MatrixRead& read, u32 granule);
  void write_slowly(Warp& warp, const Ins& ins, const Agent& agent, Access access, u32 address, u32 bytes);
  void check_order_of_write(Warp& warp, const Ins& ins, const Agent& agent, Access access,
                            const Piece& piece);
  void check_order_after_reads(Warp& warp, const Ins& ins, const Agent& agent, Access access,
                               const Piece& piece);
  void overtake(Warp& warp, const Ins& ins, const Agent& agent, Access access, const Piece& piece) {
    late_.overwrite(warp, ins, access == Access::generic, agent.clock + agents_, piece.address >> 4,
                    in_granule(piece));
  }
  void check_state_of_write(Warp& warp, const Ins& ins, Record& record, u32 address);

  std::vector<Record> records_;  // one for each 16 bytes
  // Clocks of the last reads, in groups of four readers: the clocks of a tile's readers are close together.
  // Only the groups in Record::readers are valid; in these, 0 means not read, since no clock is 0.
  std::vector<u32> reader_clocks_;
  std::vector<Record> words_;  // one for each 4 bytes: four for each split record
  std::vector<u32> word_clocks_;
  std::vector<Marks> marks_, word_marks_;
  LateReads late_;
  const u8* leaders_ = nullptr;
  u32 agents_ = 1;
  u32 groups_ = 1;  // groups of four agents
  u32 granules_ = 0;
  bool order_ = false;
};

}  // namespace flashjit::emulator
