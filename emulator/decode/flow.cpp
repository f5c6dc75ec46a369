#include "emulator/decode/flow.hpp"

#include <algorithm>
#include <queue>

#include "emulator/decode/forward.hpp"

namespace flashjit::emulator {
namespace {

void find_blocks(const std::vector<FlowNode>& nodes, Flow& flow) {
  const int count = static_cast<int>(nodes.size());
  std::vector<bool> leads(count + 1, false);
  leads[0] = true;
  for (int i = 0; i < count; ++i) {
    for (int target : nodes[i].targets) leads[target] = true;
    if (!nodes[i].targets.empty() || nodes[i].exits) leads[i + 1] = true;
  }
  flow.block_of.resize(count);
  for (int i = 0; i < count; ++i) {
    if (leads[i]) flow.block_start.push_back(i);
    flow.block_of[i] = static_cast<int>(flow.block_start.size()) - 1;
  }
  const int blocks = static_cast<int>(flow.block_start.size());
  flow.block_start.push_back(count);
  flow.successors.resize(blocks);
  for (int b = 0; b < blocks; ++b) {
    const FlowNode& end = nodes[flow.block_start[b + 1] - 1];
    std::vector<int>& next = flow.successors[b];
    for (int target : end.targets) next.push_back(target < count ? flow.block_of[target] : blocks);
    if (end.exits) next.push_back(blocks);
    if ((end.targets.empty() && !end.exits) || end.guarded) next.push_back(b + 1);
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
  }
}

// Immediate post-dominators on the reversed graph (Cooper, Harvey and Kennedy, "A Simple, Fast Dominance
// Algorithm"). A block that cannot reach the exit (an endless loop) gets the exit.
std::vector<int> post_dominators(const Flow& flow) {
  const int exit = static_cast<int>(flow.successors.size());
  std::vector<std::vector<int>> predecessors(exit + 1);
  for (int b = 0; b < exit; ++b) {
    for (int s : flow.successors[b]) predecessors[s].push_back(b);
  }
  std::vector<int> order;  // reverse post-order of the reversed graph
  std::vector<int> number(exit + 1, -1);
  std::vector<std::pair<int, std::size_t>> stack{{exit, 0}};
  std::vector<bool> seen(exit + 1, false);
  seen[exit] = true;
  while (!stack.empty()) {
    auto& [block, next] = stack.back();
    if (next < predecessors[block].size()) {
      int p = predecessors[block][next++];
      if (!seen[p]) {
        seen[p] = true;
        stack.emplace_back(p, 0);
      }
    } else {
      number[block] = static_cast<int>(order.size());
      order.push_back(block);
      stack.pop_back();
    }
  }
  std::vector<int> immediate(exit + 1, -1);
  immediate[exit] = exit;
  auto meet = [&](int a, int b) {
    while (a != b) {
      while (number[a] < number[b]) a = immediate[a];
      while (number[b] < number[a]) b = immediate[b];
    }
    return a;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = order.size() - 1; i-- > 0;) {
      int block = order[i];
      int found = -1;
      for (int s : flow.successors[block]) {
        if (immediate[s] >= 0) found = found < 0 ? s : meet(found, s);
      }
      if (found != immediate[block]) {
        immediate[block] = found;
        changed = true;
      }
    }
  }
  for (int& block : immediate) {
    if (block < 0) block = exit;
  }
  return immediate;
}

void find_live_ranges(const std::vector<FlowNode>& nodes, int registers, Flow& flow) {
  const int blocks = static_cast<int>(flow.successors.size());
  const std::size_t words = (static_cast<std::size_t>(registers) + 63) / 64;
  std::vector<Bits> in(blocks + 1, Bits(words)), out(blocks, Bits(words)), use(blocks, Bits(words)),
      def(blocks, Bits(words));
  for (int b = 0; b < blocks; ++b) {
    for (int i = flow.block_start[b]; i < flow.block_start[b + 1]; ++i) {
      for (int r : nodes[i].uses) {
        if (!get(def[b], r)) set(use[b], r);
      }
      if (!nodes[i].guarded) {
        for (int r : nodes[i].defs) set(def[b], r);
      }
    }
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (int b = blocks - 1; b >= 0; --b) {
      Bits& leaving = out[b];
      for (int s : flow.successors[b]) {
        for (std::size_t k = 0; k < words; ++k) leaving[k] |= in[s][k];
      }
      for (std::size_t k = 0; k < words; ++k) {
        u64 entering = use[b][k] | (leaving[k] & ~def[b][k]);
        if (entering != in[b][k]) {
          in[b][k] = entering;
          changed = true;
        }
      }
    }
  }
  flow.live.assign(registers, {});
  auto touch = [&](int r, int position) {
    LiveRange& range = flow.live[r];
    range.first = std::min(range.first, position);
    range.last = std::max(range.last, position);
  };
  auto touch_all = [&](const Bits& bits, int position) {
    for (std::size_t k = 0; k < words; ++k) {
      for (u64 rest = bits[k]; rest != 0; rest &= rest - 1)
        touch(static_cast<int>(k * 64) + __builtin_ctzll(rest), position);
    }
  };
  for (int b = 0; b < blocks; ++b) {
    touch_all(in[b], 2 * flow.block_start[b]);
    touch_all(out[b], 2 * flow.block_start[b + 1]);
    for (int i = flow.block_start[b]; i < flow.block_start[b + 1]; ++i) {
      for (int r : nodes[i].uses) touch(r, 2 * i);
      for (int r : nodes[i].defs) {
        touch(r, 2 * i + 1);
        if (nodes[i].early) touch(r, 2 * i);
      }
    }
  }
}

}  // namespace

Flow analyse_flow(const std::vector<FlowNode>& nodes, int registers) {
  Flow flow;
  if (nodes.empty()) {
    flow.live.resize(registers);
    flow.block_start = {0};
    flow.is_rejoin = {false};
    return flow;
  }
  find_blocks(nodes, flow);
  const int blocks = static_cast<int>(flow.successors.size());
  std::vector<int> immediate = post_dominators(flow);
  flow.rejoin.assign(blocks, -1);
  flow.is_rejoin.assign(blocks + 1, false);
  for (int b = 0; b < blocks; ++b) {
    if (flow.successors[b].size() < 2) continue;
    flow.rejoin[b] = flow.block_start[immediate[b]];
    flow.is_rejoin[immediate[b]] = true;
  }
  find_live_ranges(nodes, registers, flow);
  return flow;
}

std::vector<int> colour_registers(const std::vector<Register>& registers, const std::vector<LiveRange>& live,
                                  int rows[3]) {
  auto kind = [&](int r) {
    RegisterClass cls = registers[r].cls;
    return cls == RegisterClass::predicate ? 0 : cls == RegisterClass::bits64 ? 2 : 1;
  };
  std::vector<int> order;
  for (int r = 0; r < static_cast<int>(live.size()); ++r) {
    if (live[r].last >= 0) order.push_back(r);
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return live[a].first < live[b].first; });
  std::vector<int> row(registers.size(), -1);
  std::vector<int> free_rows[3];
  rows[0] = rows[1] = rows[2] = 0;
  using Ending = std::pair<int, int>;  // last position, register
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> alive;
  for (int r : order) {
    while (!alive.empty() && alive.top().first < live[r].first) {
      int ended = alive.top().second;
      alive.pop();
      free_rows[kind(ended)].push_back(row[ended]);
    }
    const int k = kind(r);
    if (free_rows[k].empty()) {
      row[r] = rows[k]++;
    } else {
      row[r] = free_rows[k].back();
      free_rows[k].pop_back();
    }
    alive.emplace(live[r].last, r);
  }
  return row;
}

}  // namespace flashjit::emulator
