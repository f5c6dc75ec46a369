#include "emulator/decode/late_loads.hpp"

#include <algorithm>
#include <string_view>

#include "emulator/decode/forward.hpp"

namespace flashjit::emulator {
namespace {

bool has(std::string_view opcode, std::string_view part) {
  return opcode.find(part) != std::string_view::npos;
}

// Asynchronous copies into shared memory, and whatever a CTA of the cluster does in another CTA's.
bool may_overtake(std::string_view opcode) {
  return has(opcode, ".mbarrier::complete_tx") || opcode.starts_with("mapa.");
}

bool is_matrix_load(std::string_view opcode) {
  return opcode.starts_with("ldmatrix.");
}
bool loads_shared(std::string_view opcode) {
  if (is_matrix_load(opcode)) return true;
  return opcode.starts_with("ld.") && !has(opcode, ".global") && !has(opcode, ".local") &&
         !has(opcode, ".param") && !has(opcode, ".const");
}

bool is_integer(std::string_view type) {
  return !type.empty() && (type.front() == 'u' || type.front() == 's') &&
         type.find_first_not_of("0123456789", 1) == std::string_view::npos;
}
// Moves, and conversions of integers that may be just another view of the same register.
bool only_copies(std::string_view opcode) {
  if (opcode.starts_with("mov.") || opcode.starts_with("cvta.")) return true;
  if (!opcode.starts_with("cvt.")) return false;
  const std::string_view types = opcode.substr(4);
  const std::size_t dot = types.find('.');
  return dot != std::string_view::npos && is_integer(types.substr(0, dot)) &&
         is_integer(types.substr(dot + 1));
}

bool any(const Bits& bits, const std::vector<int>& registers) {
  return std::ranges::any_of(registers, [&](int r) { return get(bits, r); });
}

}  // namespace

void find_late_loads(Program& program, const std::vector<FlowNode>& nodes, const Flow& flow, int registers) {
  const std::vector<Statement>& statements = program.statements;
  const auto opcode_is = [](auto question) {
    return [question](const Statement& s) { return question(s.opcode); };
  };
  if (std::ranges::none_of(statements, opcode_is(may_overtake)) ||
      std::ranges::none_of(statements, opcode_is(loads_shared)))
    return;

  // Carried forward: which registers may hold a loaded value that nothing has used yet.
  const auto step = [&](std::size_t i, Bits& held) {
    const FlowNode& node = nodes[i];
    const std::string_view opcode = statements[i].opcode;
    const bool copies = only_copies(opcode);
    const bool fills = loads_shared(opcode) || (copies && any(held, node.uses));
    if (!node.guarded) {
      if (!copies) {
        for (int r : node.uses) clear(held, r);
      }
      for (int r : node.defs) clear(held, r);
    }
    if (fills) {
      for (int r : node.defs) set(held, r);
    }
  };
  const Bits none((static_cast<std::size_t>(registers) + 64) / 64);
  const std::vector<Bits> before = carry_forward(flow, none, step);

  program.load_step_of.assign(program.code.size(), 0);
  std::size_t block = before.size();
  Bits held;
  for (std::size_t c = 0; c < program.code.size(); ++c) {
    const u32 i = program.statement_of[c];
    if (i == kNoTarget) continue;
    if (const auto b = static_cast<std::size_t>(flow.block_of[i]); b != block) held = before[block = b];
    const std::string_view opcode = statements[i].opcode;
    Ins& ins = program.code[c];
    LoadStep made;
    if (loads_shared(opcode)) {
      made.bytes = static_cast<u8>(is_matrix_load(opcode) ? 16 : ins.x * ins.count);
      made.lanes = static_cast<u8>(is_matrix_load(opcode) ? 8 * ins.count : 0);
      made.generic = !has(opcode, ".shared");
    }
    for (int r : nodes[i].uses) {
      if (get(held, r)) made.reads.push_back(static_cast<u32>(r));
    }
    made.copies = only_copies(opcode) && !made.reads.empty();
    for (int r : nodes[i].defs) {
      if (made.bytes != 0 || made.copies || get(held, r)) made.writes.push_back(static_cast<u32>(r));
    }
    if (made.bytes != 0 || !made.reads.empty() || !made.writes.empty()) {
      ins.flags |= kTouchesLoaded;
      program.load_step_of[c] = static_cast<u32>(program.load_steps.size());
      program.load_steps.push_back(std::move(made));
    }
    step(i, held);
  }
}

}  // namespace flashjit::emulator
