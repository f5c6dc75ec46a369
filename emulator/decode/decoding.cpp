#include "emulator/decode/decoding.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "emulator/decode/layout.hpp"
#include "flashjit/error.hpp"

namespace flashjit::emulator {
namespace {

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

}  // namespace

void refuse(const Module& module, const Statement& statement, const std::string& what) {
  throw Error(
      ErrorCode::unsupported,
      fmt::format("PTX line {}: {}: \"{}\"", statement.line, what,
                  module.line_text(statement.line).substr(0, 160)),
      "the emulator executes what flashjit's templates use; a new instruction is one row in emulator/exec/");
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
      return constant(value_of(of, wide), wide);
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

// As ptxas does: a 0d literal is rounded for an .f32, and a 0f literal is refused for an .f64.
u64 Decoding::value_of(const Operand& immediate, bool wide) const {
  if (immediate.float_bytes == 8 && !wide) {
    if (!statement.opcode.ends_with(".f32")) fail("a literal of 64 bits stands where 32 are expected");
    return std::bit_cast<u32>(static_cast<float>(std::bit_cast<double>(immediate.value)));
  }
  if (immediate.float_bytes == 4 && wide) fail("a literal of 32 bits stands where 64 are expected");
  return immediate.value;
}

u32 Decoding::destination(const Operand& of, u32 bytes) const {
  if (of.kind == Operand::Kind::sink) return 0;
  if (of.kind != Operand::Kind::reg) fail("a destination must be a register");
  if (bytes_of(of) != bytes) fail(fmt::format("a {}-bit register is expected as destination", 8 * bytes));
  return static_cast<u32>(std::max(0, layout.rows[of.reg]));
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

u32 Decoding::bytes_of(const Operand& of) const {
  static constexpr u32 kBytes[] = {0, 2, 4, 8};  // by RegisterClass
  return of.reg < 0 ? 0 : kBytes[static_cast<int>(class_of(of))];
}

i64 Decoding::immediate(std::size_t i) const {
  if (operand(i).kind != Operand::Kind::immediate) fail("an immediate is expected");
  return static_cast<i64>(operand(i).value);
}

template <class Visit>
void Decoding::for_each_element(const Operand& of, Visit visit) const {
  if (of.kind != Operand::Kind::vector) return visit(of);
  for (const Operand& part : of.parts) {
    if (part.kind == Operand::Kind::vector) fail("a vector stands in a vector");
    visit(part);
  }
}

void Decoding::append(const Operand& of, bool wide) {
  for_each_element(of, [&](const Operand& element) { program.lists.push_back(source(element, wide)); });
}

void Decoding::append_destination(const Operand& of, u32 bytes) {
  for_each_element(of, [&](const Operand& element) { program.lists.push_back(destination(element, bytes)); });
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

void Decoding::set_own_shared() {
  if (has("shared") || has("shared::cta")) ins.flags |= kOwnShared;
}

void Decoding::fail(const std::string& what) const {
  refuse(program.module, statement, what);
}

}  // namespace flashjit::emulator
