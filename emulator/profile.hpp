// What a launch executed: counters by instruction while it runs, and the Profile that users and tests read.
#pragma once

#include <array>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "emulator/program.hpp"

namespace flashjit::emulator {

// By code index. Each thread of a launch has its own, and adds them up at the end.
struct Counters {
  struct Memory {
    u64 global_read = 0, global_written = 0;  // bytes
    u64 shared_bytes = 0;
    u64 transactions = 0;  // of shared memory: 128 bytes, one word per bank
    u64 ideal = 0;         // how many the bytes alone would need
  };
  std::vector<u64> executed;  // warp instructions
  std::vector<Memory> memory;
  u64 barrier_waits = 0;              // how often a warp waited at a barrier, at an mbarrier or for its
                                      // warpgroup
  u64 tma_read = 0, tma_written = 0;  // bytes moved by TMA and bulk copies
  u64 ctas = 0;

  void resize(std::size_t code) {
    executed.resize(code);
    memory.resize(code);
  }
  void add(const Counters& other);
};

// A line of the CUDA source that accesses shared memory.
struct SharedLine {
  int source_line = 0;
  std::string origin;       // template and line, if known
  std::string instruction;  // opcode
  u64 accesses = 0;         // warp instructions
  u64 transactions = 0;
  u64 conflicts = 0;  // transactions beyond what the bytes need
};

struct Profile {
  u64 launches = 0;
  u64 ctas = 0;
  u64 instructions = 0;  // warp instructions
  std::array<u64, kOpClasses> by_class{};
  std::map<std::string, u64> by_opcode;
  u64 global_bytes_read = 0, global_bytes_written = 0;  // TMA and bulk copies included
  u64 shared_bytes = 0;                                 // read and written by instructions
  u64 shared_transactions = 0;
  u64 bank_conflicts = 0;  // transactions beyond what the bytes need
  u64 tensor_flops = 0;    // multiply-adds of mma and wgmma, each counted as two
  u64 barrier_waits = 0;
  std::vector<SharedLine> shared_lines;                 // most conflicts first
  std::map<std::string, std::set<int>> executed_lines;  // by kernel, the lines of its PTX; for coverage

  [[nodiscard]] u64 count(OpClass cls) const { return by_class[static_cast<std::size_t>(cls)]; }
  [[nodiscard]] std::string table() const;
  [[nodiscard]] std::string json() const;
};

struct ProfileSource {
  const Program* program;
  const Counters* counters;
  std::vector<std::string> origins;  // by source line, from 1; may be empty
};
// Adds one kernel's counters to a profile.
void accumulate(Profile& profile, const ProfileSource& source);

}  // namespace flashjit::emulator
