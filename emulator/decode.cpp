#include "emulator/decode.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "emulator/inline_calls.hpp"
#include "emulator/layout.hpp"
#include "emulator/ptx/flow.hpp"
#include "emulator/wgmma_rules.hpp"
#include "flashjit/error.hpp"

namespace flashjit::emulator {
namespace {

constexpr u32 kNarrowRow = 4 * kLanes;
constexpr u32 kWideRow = 8 * kLanes;

struct SpecialName {
  std::string_view name;
  Special special;
};
constexpr SpecialName kSpecials[] = {
    {"%tid.x", Special::tid_x},
    {"%tid.y", Special::tid_y},
    {"%tid.z", Special::tid_z},
    {"%ntid.x", Special::ntid_x},
    {"%ntid.y", Special::ntid_y},
    {"%ntid.z", Special::ntid_z},
    {"%ctaid.x", Special::ctaid_x},
    {"%ctaid.y", Special::ctaid_y},
    {"%ctaid.z", Special::ctaid_z},
    {"%nctaid.x", Special::nctaid_x},
    {"%nctaid.y", Special::nctaid_y},
    {"%nctaid.z", Special::nctaid_z},
    {"%laneid", Special::laneid},
    {"%warpid", Special::warpid},
    {"%nwarpid", Special::nwarpid},
    {"%smid", Special::smid},
    {"%nsmid", Special::nsmid},
    {"%gridid", Special::gridid},
    {"%dynamic_smem_size", Special::dynamic_smem_size},
    {"%total_smem_size", Special::total_smem_size},
    {"%cluster_ctaid.x", Special::cluster_ctaid_x},
    {"%cluster_ctaid.y", Special::cluster_ctaid_y},
    {"%cluster_ctaid.z", Special::cluster_ctaid_z},
    {"%cluster_nctaid.x", Special::cluster_nctaid_x},
    {"%cluster_nctaid.y", Special::cluster_nctaid_y},
    {"%cluster_nctaid.z", Special::cluster_nctaid_z},
    {"%cluster_ctarank", Special::cluster_ctarank},
    {"%cluster_nctarank", Special::cluster_nctarank},
    {"%clusterid.x", Special::clusterid_x},
    {"%clusterid.y", Special::clusterid_y},
    {"%clusterid.z", Special::clusterid_z},
    {"%nclusterid.x", Special::nclusterid_x},
    {"%nclusterid.y", Special::nclusterid_y},
    {"%nclusterid.z", Special::nclusterid_z},
    {"%is_explicit_cluster", Special::is_explicit_cluster},
    {"%lanemask_eq", Special::lanemask_eq},
    {"%lanemask_lt", Special::lanemask_lt},
    {"%lanemask_le", Special::lanemask_le},
    {"%lanemask_gt", Special::lanemask_gt},
    {"%lanemask_ge", Special::lanemask_ge},
};

[[noreturn]] void refuse(const Module& module, const Statement& statement, const std::string& what) {
  throw Error(
      ErrorCode::unsupported,
      fmt::format("PTX line {}: {}: \"{}\"", statement.line, what,
                  module.line_text(statement.line).substr(0, 160)),
      "the emulator executes what flashjit's templates use; a new instruction is one row in emulator/exec/");
}

// The letter of the operand table for each operand of a statement.
std::string letters_for(const Module& module, const Statement& statement, const Opcode& row) {
  // Optional operands are left out from the left, as many as there are too few.
  const std::string_view all = row.operands;
  const auto optional = static_cast<std::size_t>(std::count(all.begin(), all.end(), '?'));
  const std::size_t required = all.size() - 2 * optional;
  std::size_t present = statement.operands.size() > required ? statement.operands.size() - required : 0;
  std::string letters;
  for (std::size_t k = 0; k < all.size(); ++k) {
    if (all[k] == '?') continue;
    if (k + 1 < all.size() && all[k + 1] == '?') {
      if (present == 0) continue;
      --present;
    }
    letters += all[k];
  }
  if (letters.size() != statement.operands.size()) {
    refuse(module, statement, fmt::format("{} operands, expected {}", statement.operands.size(), required));
  }
  return letters;
}

void collect(const Operand& operand, std::vector<int>& registers) {
  if (operand.reg >= 0) registers.push_back(operand.reg);
  if (operand.second >= 0) registers.push_back(operand.second);
  for (const Operand& part : operand.parts) collect(part, registers);
}

// A predicate that every path sets to false just before: setp.ne.b32 p, 0, 0. wgmma's scale-d comes so.
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
    Layout layout(program_, *entry, body.variables);
    look_up();
    flow_ = analyse_flow(nodes_, static_cast<int>(registers_.size()));
    give_rows(layout);
    emit(layout);
    align_constants();
    if (options_.checked)
      check_wgmma_rules(program_, nodes_, flow_, static_cast<int>(registers_.size()), code_of_, layout.rows);
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

  void give_rows(Layout& layout) {
    int rows[3];
    layout.rows = colour_registers(registers_, flow_.live, rows);
    // Predicate 0 is always true, predicate 1 takes what nobody reads; row 0 likewise takes results.
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
    operands(decoding, letters);
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

  // An mma whose A operand is that of the mma before it in the block, untouched since, need not convert it
  // again: kernels go through the columns of B with one A.
  void note_fragment(int index, Ins& ins) {
    const Statement& statement = program_.statements[index];
    std::vector<int> registers;
    collect(statement.operands[1], registers);
    if (flow_.block_start[flow_.block_of[index]] == index) fragment_.clear();
    ins.x = !registers.empty() && registers == fragment_ && statement.opcode == fragment_opcode_ ? 1 : 0;
    if (statement.guard >= 0) ins.x = 0;
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

  static void operands(Decoding& decoding, const std::string& letters) {
    Ins& ins = decoding.ins;
    int sources = 0;
    bool has_list = false, has_destination = false;
    auto next_source = [&]() -> u32& {
      if (sources >= 4) decoding.fail("too many operands");
      return ins.s[sources++];
    };
    for (std::size_t k = 0; k < letters.size(); ++k) {
      const Operand& operand = decoding.operand(k);
      switch (letters[k]) {
        case 'd':
        case 'D': {
          if (operand.kind != Operand::Kind::reg && operand.kind != Operand::Kind::sink)
            decoding.fail("a destination must be a register");
          u32 row = decoding.destination(operand);
          if (!has_destination)
            ins.d = row;
          else
            next_source() = row;
          has_destination = true;
          if (operand.second >= 0)
            ins.pair = static_cast<u16>(std::max(1, decoding.layout.rows[operand.second]));
          break;
        }
        case 'p':
          if (!has_destination)
            ins.d = decoding.predicate(operand);
          else
            next_source() = decoding.predicate(operand);
          if (operand.second >= 0)
            ins.pair = static_cast<u16>(std::max(1, decoding.layout.rows[operand.second]));
          has_destination = true;
          break;
        case 's':
          next_source() = decoding.source(operand, false);
          break;
        case 'S':
          next_source() = decoding.source(operand, true);
          break;
        case 'q': {
          // mov.pred takes 0 and -1 too: predicate 0 is always true.
          const bool constant = operand.kind == Operand::Kind::immediate;
          if (operand.negated || (constant && operand.value == 0))
            ins.negate |= static_cast<u8>(1 << sources);
          next_source() = constant ? 0 : decoding.predicate(operand);
          break;
        }
        case 'm': {
          if (operand.kind != Operand::Kind::memory) decoding.fail("expected an address in brackets");
          Decoding::Address address = decoding.address(operand);
          if (address.wide) ins.wide |= static_cast<u8>(1 << sources);
          if (sources == 0 || ins.imm == 0)
            ins.imm = address.offset;
          else if (address.offset != 0)
            decoding.fail("two offsets in one instruction");
          next_source() = address.row;
          break;
        }
        case 'v':
        case 'V':
        case 'w':
        case 'W':
        case 'x':
          if (!has_list) {
            ins.list = static_cast<u32>(decoding.program.lists.size());
            ins.count = static_cast<u8>(operand.kind == Operand::Kind::vector ? operand.parts.size() : 1);
          }
          has_list = true;
          decoding.append(operand, letters[k] == 'V' || letters[k] == 'W');
          break;
        default:
          break;
      }
    }
  }

  void align_constants() {
    // A row is read with vector loads; the start is aligned when a launch copies nothing, so keep slack for
    // it.
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
  std::vector<int> fragment_;  // registers of A that the last mma converted
  std::string_view fragment_opcode_;
};

}  // namespace

Program decode(Module module, std::string_view entry, const DecodeOptions& options) {
  return Decoder(std::move(module), entry, options).run();
}

const Operand& Decoding::operand(std::size_t i) const {
  if (i >= statement.operands.size()) fail("an operand is missing");
  return statement.operands[i];
}

bool Decoding::has(std::string_view modifier) const {
  for (std::string_view part : match) {
    if (part == modifier) return true;
  }
  return false;
}

u32 Decoding::constant(u64 value, bool wide) {
  if (!wide) value = static_cast<u32>(value);
  auto [found, fresh] =
      layout.constants.try_emplace({value, wide}, static_cast<u32>(program.constants.size()) | 1);
  if (fresh) {
    const std::size_t size = wide ? 8 : 4;
    const std::size_t start = program.constants.size();
    program.constants.resize(start + size * kLanes);
    for (int lane = 0; lane < kLanes; ++lane)
      std::memcpy(program.constants.data() + start + size * lane, &value, size);
  }
  return found->second;
}

u32 Decoding::source(const Operand& of, bool wide) {
  switch (of.kind) {
    case Operand::Kind::reg: {
      if (class_of(of) == RegisterClass::predicate) fail("a predicate stands where a value is expected");
      if (wide != (class_of(of) == RegisterClass::bits64))
        fail(wide ? "a 64-bit register is expected" : "a 32-bit register is expected");
      int row = layout.rows[of.reg];
      return row < 0 ? constant(0, wide) : static_cast<u32>(row);
    }
    case Operand::Kind::immediate:
      return constant(of.value, wide);
    case Operand::Kind::sink:
      return constant(0, wide);
    case Operand::Kind::symbol: {
      const Layout::Place* place = layout.find(of.name);
      if (place == nullptr) fail(fmt::format("\"{}\" is not declared", of.name));
      return constant(place->address + of.value, wide);
    }
    case Operand::Kind::special:
      if (of.name == "WARP_SZ") return constant(kLanes, wide);
      for (const SpecialName& known : kSpecials) {
        if (known.name != of.name) continue;
        if (wide) fail("a special register of 32 bits stands where 64 are expected");
        u32 row = layout.special_rows + static_cast<u32>(layout.specials.size()) * kNarrowRow;
        return layout.specials.try_emplace(known.special, row).first->second;
      }
      fail(fmt::format("special register \"{}\" is not known", of.name));
    default:
      fail("this kind of operand is not expected here");
  }
}

u32 Decoding::destination(const Operand& of) const {
  if (of.reg < 0) return 0;
  int row = layout.rows[of.reg];
  return row < 0 ? 0 : static_cast<u32>(row);
}

u32 Decoding::predicate(const Operand& of) const {
  if (of.kind == Operand::Kind::sink) return 1;
  if (of.kind != Operand::Kind::reg || class_of(of) != RegisterClass::predicate)
    fail("a predicate register is expected");
  return static_cast<u32>(std::max(1, layout.rows[of.reg]));
}

RegisterClass Decoding::class_of(const Operand& of) const {
  return of.reg < 0 ? RegisterClass::bits32 : layout.classes[of.reg];
}

bool Decoding::is_wide(const Operand& of) const {
  return of.reg >= 0 && class_of(of) == RegisterClass::bits64;
}

i64 Decoding::immediate(std::size_t i) const {
  if (operand(i).kind != Operand::Kind::immediate) fail("an immediate is expected");
  return static_cast<i64>(operand(i).value);
}

void Decoding::append(const Operand& of, bool wide) {
  if (of.kind == Operand::Kind::vector) {
    for (const Operand& part : of.parts) append(part, wide);
  } else if (of.kind == Operand::Kind::reg && layout.rows[of.reg] < 0) {
    program.lists.push_back(0);
  } else if (of.kind == Operand::Kind::sink) {
    program.lists.push_back(0);
  } else {
    program.lists.push_back(source(of, wide));
  }
}

Decoding::Address Decoding::address(const Operand& memory) {
  if (memory.kind != Operand::Kind::memory || memory.parts.empty()) fail("expected an address in brackets");
  const Operand& base = memory.parts.front();
  if (base.kind == Operand::Kind::reg) {
    const bool wide = is_wide(base);
    Operand plain = base;
    plain.value = 0;
    return {source(plain, wide), wide, static_cast<i64>(base.value)};
  }
  return {source(base, true), true, 0};
}

void Decoding::fail(const std::string& what) const {
  refuse(program.module, statement, what);
}

}  // namespace flashjit::emulator
