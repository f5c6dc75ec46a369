// Carries facts about registers forward along every path: what may hold before each block.
#pragma once

#include <vector>

#include "emulator/decode/flow.hpp"

namespace flashjit::emulator {

// A set of registers.
using Bits = std::vector<u64>;
inline void set(Bits& bits, int i) {
  bits[static_cast<std::size_t>(i) >> 6] |= 1ull << (i & 63);
}
inline void clear(Bits& bits, int i) {
  bits[static_cast<std::size_t>(i) >> 6] &= ~(1ull << (i & 63));
}
inline bool get(const Bits& bits, int i) {
  return (bits[static_cast<std::size_t>(i) >> 6] >> (i & 63) & 1) != 0;
}

// The set before each block, which is the union of what its predecessors leave. step(i, set) turns the set
// before statement i into the set after it; `entry` is the set before the first block.
template <class Step>
std::vector<Bits> carry_forward(const Flow& flow, const Bits& entry, Step step) {
  const std::size_t blocks = flow.successors.size();
  std::vector<Bits> before(blocks, Bits(entry.size()));
  if (blocks > 0) before[0] = entry;
  std::vector<bool> queued(blocks, true);
  std::vector<std::size_t> work;
  for (std::size_t b = blocks; b-- > 0;) work.push_back(b);
  while (!work.empty()) {
    const std::size_t b = work.back();
    work.pop_back();
    queued[b] = false;
    Bits state = before[b];
    for (int i = flow.block_start[b]; i < flow.block_start[b + 1]; ++i)
      step(static_cast<std::size_t>(i), state);
    for (int s : flow.successors[b]) {
      if (static_cast<std::size_t>(s) >= blocks) continue;
      bool grew = false;
      for (std::size_t k = 0; k < state.size(); ++k) {
        const u64 merged = before[s][k] | state[k];
        grew |= merged != before[s][k];
        before[s][k] = merged;
      }
      if (grew && !queued[s]) {
        queued[s] = true;
        work.push_back(static_cast<std::size_t>(s));
      }
    }
  }
  return before;
}

}  // namespace flashjit::emulator
