#include "emulator/decode/wgmma_rules.hpp"

#include <algorithm>
#include <string_view>

#include "emulator/decode/forward.hpp"

namespace flashjit::emulator {
namespace {

bool begins(std::string_view text, std::string_view with) {
  return text.substr(0, with.size()) == with;
}

// Registers that the statement's wgmma owns while it runs: the accumulator, and A if it is in registers.
std::vector<int> owned(const Statement& statement) {
  std::vector<int> registers;
  for (std::size_t k = 0; k < 2 && k < statement.operands.size(); ++k) {
    if (statement.operands[k].kind != Operand::Kind::vector) continue;
    for (const Operand& part : statement.operands[k].parts) {
      if (part.reg >= 0) registers.push_back(part.reg);
    }
  }
  return registers;
}

}  // namespace

void check_wgmma_rules(Program& program, const std::vector<FlowNode>& nodes, const Flow& flow, int registers,
                       const std::vector<u32>& code_of, const std::vector<int>& rows_of) {
  const std::vector<Statement>& statements = program.statements;
  std::vector<bool> is_wgmma(statements.size()), is_fence(statements.size());
  Bits interesting((static_cast<std::size_t>(registers) + 64) / 64);
  bool any = false;
  for (std::size_t i = 0; i < statements.size(); ++i) {
    is_wgmma[i] = begins(statements[i].opcode, "wgmma.mma_async");
    is_fence[i] = begins(statements[i].opcode, "wgmma.fence");
    any |= is_wgmma[i];
    if (is_wgmma[i]) {
      for (int r : owned(statements[i])) set(interesting, r);
    }
  }
  if (!any) return;

  // Carried forward: which registers may have been touched since the last fence. One extra bit means "no
  // fence so far".
  const int never = registers;
  auto step = [&](std::size_t i, Bits& touched) {
    if (is_fence[i]) {
      std::fill(touched.begin(), touched.end(), 0);
      return;
    }
    if (is_wgmma[i]) return;  // accumulating into the same registers again needs no fence
    if (begins(statements[i].opcode, "mov.") && nodes[i].defs.size() == 1 && nodes[i].uses.size() == 1) {
      // Copies by the compiler disappear in machine code, so the copy takes over the state of its source.
      if (get(touched, nodes[i].uses[0]))
        set(touched, nodes[i].defs[0]);
      else
        clear(touched, nodes[i].defs[0]);
      return;
    }
    for (int r : nodes[i].defs) set(touched, r);
    for (int r : nodes[i].uses) {
      if (get(interesting, r)) set(touched, r);
    }
  };
  Bits entry(interesting.size());
  set(entry, never);
  const std::vector<Bits> in = carry_forward(flow, entry, step);
  for (std::size_t b = 0; b < in.size(); ++b) {
    Bits state = in[b];
    for (int n = flow.block_start[b]; n < flow.block_start[b + 1]; ++n) {
      const auto i = static_cast<std::size_t>(n);
      if (is_wgmma[i]) {
        std::string message;
        if (get(state, never)) message = "the first wgmma of the kernel has no wgmma.fence before it";
        for (int r : owned(statements[i])) {
          if (message.empty() && get(state, r)) {
            message =
                "registers of this wgmma were read or written since the last wgmma.fence; one belongs before "
                "it";
          }
        }
        if (!message.empty()) {
          const u32 at = code_of[i] + (program.statement_of[code_of[i]] == kNoTarget ? 1 : 0);
          program.findings.push_back({at, message});
          program.code[at].flags |= kBreaksRule;
        }
      }
      step(i, state);
    }
  }

  // Which instructions the machine must inspect while a wgmma runs. After colouring, registers share rows, so
  // the test is by register: only registers that a wgmma names count.
  for (std::size_t c = 0; c < program.code.size(); ++c) {
    program.touched_from.push_back(static_cast<u32>(program.touched.size()));
    const u32 index = program.statement_of[c];
    if (index == kNoTarget || is_wgmma[index]) continue;
    const std::size_t before = program.touched.size();
    for (const std::vector<int>* list : {&nodes[index].defs, &nodes[index].uses}) {
      for (int r : *list) {
        if (get(interesting, r) && rows_of[r] >= 0) program.touched.push_back(static_cast<u32>(rows_of[r]));
      }
    }
    if (program.touched.size() != before) program.code[c].flags |= kTouchesAccumulator;
  }
  program.touched_from.push_back(static_cast<u32>(program.touched.size()));
}

}  // namespace flashjit::emulator
