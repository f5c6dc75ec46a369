#include "emulator/decode/decode.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "emulator/decode/decoding.hpp"
#include "emulator/decode/flow.hpp"
#include "emulator/decode/inline_calls.hpp"
#include "emulator/decode/late_loads.hpp"
#include "emulator/decode/layout.hpp"
#include "emulator/decode/operands.hpp"
#include "emulator/decode/wgmma_rules.hpp"
#include "flashjit/error.hpp"

namespace flashjit::emulator {
namespace {

void collect(const Operand& operand, std::vector<int>& registers) {
  if (operand.reg >= 0) registers.push_back(operand.reg);
  if (operand.second >= 0) registers.push_back(operand.second);
  for (const Operand& part : operand.parts) collect(part, registers);
}

// Whether every path sets the predicate to false just before: setp.ne.b32 p, 0, 0, as for wgmma's scale-d.
bool is_constant_false(const std::vector<Statement>& statements, std::size_t before, int predicate) {
  for (std::size_t i = before; i-- > 0 && before - i < 4;) {
    const Statement& s = statements[i];
    if (s.operands.size() == 3 && s.operands[0].reg == predicate && s.opcode == "setp.ne.b32") {
      return s.operands[1].kind == Operand::Kind::immediate &&
             s.operands[2].kind == Operand::Kind::immediate &&
             static_cast<u32>(s.operands[1].value) == static_cast<u32>(s.operands[2].value);
    }
    if (!s.targets.empty()) return false;
  }
  return false;
}

struct Looked {
  const Opcode* row;
  Match match;
  std::string letters;
};

class Decoder {
 public:
  Decoder(Module module, std::string_view entry, const DecodeOptions& options) : options_(options) {
    program_.module = std::move(module);
    program_.entry = entry;
    program_.checked = options.checked;
  }

  Program run() {
    const Function* entry = program_.module.find(program_.entry);
    if (entry == nullptr || !entry->is_entry || !entry->is_defined) {
      std::string known;
      for (const auto& [name, function] : program_.module.functions) {
        if (function.is_entry) known += (known.empty() ? "" : ", ") + name;
      }
      throw Error(ErrorCode::not_found, fmt::format("the PTX has no kernel \"{}\"; it has {}", program_.entry,
                                                    known.empty() ? "none" : known));
    }
    Inlined body = inline_calls(program_.module, *entry);
    program_.names = std::move(body.names);
    program_.statements = std::move(body.statements);
    registers_ = std::move(body.registers);
    program_.max_threads = entry->max_threads;
    program_.min_ctas = entry->min_ctas;
    program_.required_block = entry->required_block;
    program_.required_cluster = entry->required_cluster;
    Layout layout(program_, *entry, body.variables);
    look_up();
    flow_ = analyse_flow(nodes_, static_cast<int>(registers_.size()));
    keep_fragments();
    give_rows(layout);
    emit(layout);
    align_constants();
    if (options_.checked) {
      const int registers = static_cast<int>(registers_.size());
      check_wgmma_rules(program_, nodes_, flow_, registers, code_of_, layout.rows);
      find_late_loads(program_, nodes_, flow_, registers);
    }
    return std::move(program_);
  }

 private:
  void look_up() {
    const std::vector<Statement>& statements = program_.statements;
    looked_.resize(statements.size());
    nodes_.resize(statements.size());
    std::map<std::string_view, std::pair<const Opcode*, Match>> known;
    for (std::size_t i = 0; i < statements.size(); ++i) {
      const Statement& statement = statements[i];
      auto [found, fresh] = known.try_emplace(statement.opcode);
      if (fresh) found->second.first = find_opcode(statement.opcode, found->second.second);
      const Opcode* row = found->second.first;
      if (row == nullptr)
        refuse(program_.module, statement, fmt::format("unknown instruction \"{}\"", statement.opcode));
      looked_[i] = {row, found->second.second, letters_for(program_.module, statement, *row)};
      FlowNode& node = nodes_[i];
      node.targets = statement.targets;
      node.exits = (row->flags & kOpExit) != 0;
      node.early = (row->flags & kOpEarly) != 0;
      node.guarded = statement.guard >= 0;
      if (node.guarded) node.uses.push_back(statement.guard);
      for (std::size_t k = 0; k < statement.operands.size(); ++k) {
        const Operand& operand = statement.operands[k];
        switch (looked_[i].letters[k]) {
          case 'd':
          case 'D':
          case 'p':
          case 'v':
          case 'V':
          case 'o':
            collect(operand, operand.kind == Operand::Kind::memory ? node.uses : node.defs);
            break;
          case 'x':
            collect(operand, node.defs);
            if (!((row->flags & kOpWarpgroup) != 0 && writes_only(i))) collect(operand, node.uses);
            break;
          default:
            collect(operand, node.uses);
        }
      }
    }
  }

  [[nodiscard]] bool writes_only(std::size_t i) const {
    for (const Operand& operand : program_.statements[i].operands) {
      if (operand.kind == Operand::Kind::reg && registers_[operand.reg].cls == RegisterClass::predicate) {
        return is_constant_false(program_.statements, i, operand.reg);
      }
    }
    return false;
  }

  // A running wgmma still reads its fragment of A after the last statement that names those registers. So
  // they share their rows with no other registers.
  void keep_fragments() {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if ((looked_[i].row->flags & kOpWarpgroup) == 0) continue;
      const std::vector<int>& written = nodes_[i].defs;
      for (int r : nodes_[i].uses) {
        if (registers_[r].cls != RegisterClass::bits32) continue;
        if (std::find(written.begin(), written.end(), r) == written.end())
          flow_.live[r] = {0, 2 * static_cast<int>(nodes_.size())};
      }
    }
  }

  void give_rows(Layout& layout) {
    int rows[3];
    layout.rows = colour_registers(registers_, flow_.live, rows);
    // Predicate 0 is always true; predicate 1 takes results that nobody reads, and so does row 0.
    const u32 wide_start = kWideRow + static_cast<u32>(rows[1]) * kNarrowRow;
    layout.classes.resize(registers_.size());
    for (std::size_t r = 0; r < registers_.size(); ++r) {
      layout.classes[r] = registers_[r].cls;
      int& row = layout.rows[r];
      if (row < 0) continue;
      if (registers_[r].cls == RegisterClass::predicate)
        row += 2;
      else if (registers_[r].cls == RegisterClass::bits64)
        row = static_cast<int>(wide_start) + row * static_cast<int>(kWideRow);
      else
        row = static_cast<int>(kWideRow) + row * static_cast<int>(kNarrowRow);
    }
    program_.predicates = static_cast<u32>(rows[0]) + 2;
    program_.row_bytes = wide_start + static_cast<u32>(rows[2]) * kWideRow;
    layout.special_rows = program_.row_bytes;
  }

  void emit(const Layout& layout) {
    const std::vector<Statement>& statements = program_.statements;
    const auto count = static_cast<int>(statements.size());
    code_of_.assign(statements.size() + 1, 0);
    for (int i = 0; i < count; ++i) {
      code_of_[i] = static_cast<u32>(program_.code.size());
      if (flow_.block_start[flow_.block_of[i]] == i && flow_.is_rejoin[flow_.block_of[i]])
        add("-join", kNoTarget, OpClass::control);
      one(layout, i);
    }
    code_of_[count] = static_cast<u32>(program_.code.size());
    add("-end", kNoTarget, OpClass::control);
    for (std::size_t c = 0; c < program_.code.size(); ++c) {
      const u32 index = program_.statement_of[c];
      if (index == kNoTarget || statements[index].targets.empty()) continue;
      Ins& ins = program_.code[c];
      const int rejoin = flow_.rejoin[flow_.block_of[index]];
      ins.rejoin = rejoin < 0 || rejoin >= count ? kNoTarget : code_of_[rejoin];
      ins.target = code_of_[statements[index].targets.front()];
      ins.list = static_cast<u32>(program_.lists.size());
      ins.z = static_cast<u16>(statements[index].targets.size());
      for (int target : statements[index].targets) program_.lists.push_back(code_of_[target]);
    }
    for (const auto& [special, row] : layout.specials) program_.specials.emplace_back(special, row);
    program_.row_bytes = layout.special_rows + static_cast<u32>(layout.specials.size()) * kNarrowRow;
  }

  Ins& add(std::string_view opcode, u32 statement, OpClass cls) {
    Match match;
    const Opcode* row = find_opcode(opcode, match);
    Ins& ins = program_.code.emplace_back();
    ins.run = row->run;
    program_.statement_of.push_back(statement);
    program_.class_of.push_back(cls);
    return ins;
  }

  void one(const Layout& layout, int index) {
    const Statement& statement = program_.statements[index];
    const auto& [row, match, letters] = looked_[index];
    Ins ins;
    ins.run = row->run;
    if ((row->flags & kOpAligned) != 0) ins.flags |= kAligned;
    if ((row->flags & kOpWarpgroup) != 0) ins.flags |= kReleasesWarpgroup;
    Decoding decoding(program_, statement, match, layout, ins, options_.checked);
    decoding.cls = row->cls;
    if (statement.guard >= 0) {
      ins.guard = static_cast<u16>(layout.rows[statement.guard]);
      if (statement.guard_negated) ins.flags |= kGuardNegated;
    }
    fill_operands(decoding, letters);
    if (row->prepare != nullptr) row->prepare(decoding);
    if (is_mma(index))
      note_fragment(index, ins);
    else
      forget_fragment(index);
    if (ins.run == nullptr)
      refuse(program_.module, statement, "this form of the instruction is not supported");
    program_.code.push_back(ins);
    program_.statement_of.push_back(static_cast<u32>(index));
    program_.class_of.push_back(decoding.cls);
  }

  // If an mma has the same A operand as the mma before it in the block, and A was not touched since, A need
  // not be converted again: kernels multiply one A by several columns of B.
  void note_fragment(int index, Ins& ins) {
    const Statement& statement = program_.statements[index];
    std::vector<int> registers;
    collect(statement.operands[1], registers);
    if (registers.size() != statement.operands[1].parts.size()) registers.clear();  // it has constants
    if (flow_.block_start[flow_.block_of[index]] == index) fragment_.clear();
    ins.x = !registers.empty() && registers == fragment_ && statement.opcode == fragment_opcode_ ? 1 : 0;
    if (statement.guard >= 0) {  // it may not run, and then converts nothing
      ins.x = 0;
      registers.clear();
    }
    fragment_ = std::move(registers);
    fragment_opcode_ = statement.opcode;
    for (int defined : nodes_[index].defs) {
      if (std::find(fragment_.begin(), fragment_.end(), defined) != fragment_.end()) fragment_.clear();
    }
  }
  [[nodiscard]] bool is_mma(int index) const {
    const Opcode& row = *looked_[index].row;
    return row.cls == OpClass::tensor && (row.flags & kOpWarpgroup) == 0;
  }
  void forget_fragment(int index) {
    if (flow_.block_start[flow_.block_of[index]] == index && !is_mma(index)) fragment_.clear();
    for (int defined : nodes_[index].defs) {
      if (std::find(fragment_.begin(), fragment_.end(), defined) != fragment_.end()) fragment_.clear();
    }
  }

  void align_constants() {
    // Rows are read with vector loads. A launch copies nothing, so the start is aligned here, within some
    // slack.
    std::vector<std::byte>& constants = program_.constants;
    std::vector<std::byte> aligned(constants.size() + 64);
    const std::size_t shift = (64 - reinterpret_cast<u64>(aligned.data()) % 64) % 64;
    if (!constants.empty()) std::memcpy(aligned.data() + shift, constants.data(), constants.size());
    constants = std::move(aligned);
    program_.constants_start = shift;
  }

  DecodeOptions options_;
  Program program_;
  std::vector<Register> registers_;
  std::vector<Looked> looked_;
  std::vector<FlowNode> nodes_;
  Flow flow_;
  std::vector<u32> code_of_;
  std::vector<int> fragment_;  // registers of the A that the last mma converted
  std::string_view fragment_opcode_;
};

}  // namespace

Program decode(Module module, std::string_view entry, const DecodeOptions& options) {
  return Decoder(std::move(module), entry, options).run();
}

}  // namespace flashjit::emulator
