// Loads from shared memory that may not be done yet, and writes that may overtake them.
//
// After a load is issued, the warp goes on until an instruction needs the loaded value. An arrival at a
// barrier does not need it (SYNCS.ARRIVE and BAR wait for no load): it says that the warp has come so far,
// while the load may still wait in the SM's queue. Ordinary stores of the same SM queue behind the load. TMA,
// bulk copies and writes by other CTAs of the cluster do not. For these, a read is done at the warp's clock
// of the first instruction that used its result (wgmma uses its fragment when it is issued), and must be
// ordered before the write from then on. Fences (MEMBAR) also wait for loads. A result that is never used
// cannot be wrong. If machine code may have no instruction for a copy, the copy holds the result, too.
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
  u32 clock = 0;        // of the warp, when the load was issued
  u32 done = kNotYet;   // of the warp, when something had waited for the load
  bool used = false;    // whether its result was used
  u32 lanes = 0;        // lanes that take part
  u32 addressed = 0;    // lanes whose addresses count
  u32 bytes = 0;        // from each address
  u32 address[kLanes];  // as in the instruction, including a CTA's rank
  // From when on others may believe that the load is done: an arrival, or a copy that the warp started.
  const Ins* told = nullptr;
  // A write that may have overtaken the load: by which instruction and warp, and where.
  const Ins* overtaker = nullptr;
  Warp* writer = nullptr;
  u32 overtaken = 0;
};

// A warp's registers that hold loaded values which nothing has used yet.
class HeldLoads {
 public:
  // To be called before an instruction with kTouchesLoaded runs for the lanes of the mask, which is not 0.
  void look(Warp& warp, const Ins& ins, u32 mask);
  // Others may now learn what the warp has done so far.
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

// For a CTA's shared memory: loads that others were told of before they were known to be done, since the last
// write of these bytes.
class LateReads {
 public:
  // `granules`: pieces of 16 bytes.
  void reset(u32 granules) {
    reads_.clear();
    known_.assign(granules, false);
  }
  // `bytes`: a bit for each of the granule's 16 bytes.
  void add(u32 granule, u32 bytes, const std::shared_ptr<LateLoad>& load);
  // The bytes are overwritten. `heard`: the clock of each agent up to which the writer knows what it did.
  void overwrite(Warp& writer, const Ins& ins, bool ordinary, const u32* heard, u32 granule, u32 bytes) {
    if (!reads_.empty() && known_[granule]) overwrite_known(writer, ins, ordinary, heard, granule, bytes);
  }

 private:
  struct Read {
    u32 bytes = 0;
    std::shared_ptr<LateLoad> load;
  };
  void overwrite_known(Warp& writer, const Ins& ins, bool ordinary, const u32* heard, u32 granule, u32 bytes);

  std::vector<bool> known_;  // granules that are in reads_
  std::unordered_map<u32, std::vector<Read>> reads_;
};

}  // namespace flashjit::emulator
