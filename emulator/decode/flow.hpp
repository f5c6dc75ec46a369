// What the control flow of a function says: basic blocks, where divergent lanes meet again, which registers
// live where.
#pragma once

#include <vector>

#include "emulator/ptx/module.hpp"

namespace flashjit::emulator {

// A statement as far as control and data flow see it.
struct FlowNode {
  std::vector<int> defs;     // registers written
  std::vector<int> uses;     // registers read, the guard's too
  std::vector<int> targets;  // of a branch
  bool guarded = false;      // may do nothing
  bool exits = false;
  bool early = false;  // defs are written before every use is read
};

// Where a register holds a value that is still wanted, as an interval of positions: 2i before statement i, 2i
// + 1 after.
struct LiveRange {
  int first = 1 << 30;
  int last = -1;
};

struct Flow {
  std::vector<int> block_of;                 // by statement
  std::vector<int> block_start;              // one more entry than blocks: the end
  std::vector<std::vector<int>> successors;  // of each block; the number of blocks stands for the exit
  // The statement at which the lanes of a branch that ends a block meet again; the number of statements: at
  // the exit.
  std::vector<int> rejoin;      // by block; -1 where the block has one successor
  std::vector<bool> is_rejoin;  // by block, the exit too
  std::vector<LiveRange> live;  // by register
};

Flow analyse_flow(const std::vector<FlowNode>& nodes, int registers);

// Rows for registers so that no two live ranges share one: a linear scan. Returns the row of each register,
// or -1 where it is never touched, numbered from 0 within its class; `rows` receives how many rows each class
// needs.
std::vector<int> colour_registers(const std::vector<Register>& registers, const std::vector<LiveRange>& live,
                                  int rows[3]);

}  // namespace flashjit::emulator
