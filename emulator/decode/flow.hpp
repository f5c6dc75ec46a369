// What a function's control flow shows: basic blocks, where divergent lanes meet again, and where each
// register is live.
#pragma once

#include <vector>

#include "emulator/ptx/module.hpp"

namespace flashjit::emulator {

// A statement as control and data flow see it.
struct FlowNode {
  std::vector<int> defs;     // registers written
  std::vector<int> uses;     // registers read, including the guard
  std::vector<int> targets;  // of a branch
  bool guarded = false;      // it may do nothing
  bool exits = false;
  bool early = false;  // defs are written before every use is read
};

// Where a register holds a value that is still needed, as an interval of positions: 2i is before statement i,
// and 2i + 1 is after it.
struct LiveRange {
  int first = 1 << 30;
  int last = -1;
};

struct Flow {
  std::vector<int> block_of;                 // by statement
  std::vector<int> block_start;              // one more entry than blocks: the end
  std::vector<std::vector<int>> successors;  // of each block; the number of blocks means the exit
  // The statement at which the lanes meet again after the branch that ends a block; the number of statements
  // means that they meet at the exit.
  std::vector<int> rejoin;      // by block; -1 if the block has one successor
  std::vector<bool> is_rejoin;  // by block, including the exit
  std::vector<LiveRange> live;  // by register
};

Flow analyse_flow(const std::vector<FlowNode>& nodes, int registers);

// Assigns rows to registers by a linear scan, so that no two live ranges share a row. Returns the row of each
// register, numbered from 0 within its class, or -1 if the register is never used; `rows` receives how many
// rows each class needs.
std::vector<int> colour_registers(const std::vector<Register>& registers, const std::vector<LiveRange>& live,
                                  int rows[3]);

}  // namespace flashjit::emulator
