// Loads from shared memory that may not be done, and writes that may overtake them.
//
// A load is issued, and the warp goes on until an instruction needs what was loaded. An arrival at a barrier
// needs nothing (SYNCS.ARRIVE and BAR wait for no load): it says that the warp has come so far, while the
// load may still wait in the SM's queue. Ordinary stores of the same SM queue behind it; TMA, bulk copies and
// what other CTAs of the cluster write do not. So a read is done, for those, at the warp's clock of the first
// instruction that used its result (wgmma uses its fragment when it is issued), and must be ordered before
// the write from then on. Fences (MEMBAR) wait for loads too. A result that nothing ever uses is none that
// could be wrong. Where the machine code of a copy may be no instruction at all, the copy holds the result,
// too.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "emulator/program.hpp"

namespace flashjit::emulator {

struct Warp;

struct LateLoad {
  static constexpr u32 kNotYet = ~0u;

  Warp* warp = nullptr;
  const Ins* ins = nullptr;
  u32 clock = 0;        // of the warp when it was issued
  u32 done = kNotYet;   // and when something had waited for it
  bool used = false;    // its result
  u32 lanes = 0;        // that take part
  u32 addressed = 0;    // and whose addresses count
  u32 bytes = 0;        // from each address
  u32 address[kLanes];  // as the instruction has it, a CTA's rank in it
  // Since when others may believe that it is done: an arrival, or a copy that the warp started.
  const Ins* told = nullptr;
  // A write that may have overtaken it: by whom, and where.
  const Ins* overtaker = nullptr;
  Warp* writer = nullptr;
  u32 overtaken = 0;
};

// Of a warp: its registers that hold what was loaded, with nothing having used it.
class HeldLoads {
 public:
  // An instruction with kTouchesLoaded is about to run for the lanes of the mask, which is not 0.
  void look(Warp& warp, const Ins& ins, u32 mask);
  // Others may hear of what the warp has done so far.
  void tell(Warp& warp, const Ins& ins) {
    if (!holders_.empty()) tell_of_all(warp, ins);
  }
  // The warp waits for all its loads.
  void finish(const Warp& warp);

 private:
  struct Holder {
    u32 reg = 0;
    u32 lanes = 0;
    std::shared_ptr<LateLoad> load;
  };
  void use(const Warp& warp, const std::shared_ptr<LateLoad>& load);
  void tell_of_all(Warp& warp, const Ins& ins);

  std::vector<Holder> holders_;
};

// Of a CTA's shared memory: loads that others were told of before they were known to be done, since the last
// write of the bytes.
class LateReads {
 public:
  // `granules` of 16 bytes.
  void reset(u32 granules) {
    reads_.clear();
    known_.assign(granules, false);
  }
  // `bytes`: a bit for each of the granule's 16.
  void add(u32 granule, u32 bytes, const std::shared_ptr<LateLoad>& load);
  // The bytes are overwritten; `heard`: up to which clock of each agent the writer has heard of it.
  void overwrite(Warp& writer, const Ins& ins, bool ordinary, const u32* heard, u32 granule, u32 bytes) {
    if (!reads_.empty() && known_[granule]) overwrite_known(writer, ins, ordinary, heard, granule, bytes);
  }

 private:
  struct Read {
    u32 bytes = 0;
    std::shared_ptr<LateLoad> load;
  };
  void overwrite_known(Warp& writer, const Ins& ins, bool ordinary, const u32* heard, u32 granule, u32 bytes);

  std::vector<bool> known_;  // granules that reads_ has
  std::unordered_map<u32, std::vector<Read>> reads_;
};

}  // namespace flashjit::emulator
