// What a cubin says of its kernels' resources, to hold ptxas's log against.
//
// What is where was read off cubins of NVRTC 13.0 for all its archs. The sections .nv.info and .nv.info.K
// hold records of format, attribute and value or (size, payload); of these REGCOUNT and FRAME_SIZE pair a
// symbol with a number, NUM_BARRIERS stands in K's own (in NVRTC 12.9 the flags of .text.K say it).
// .nv.shared.K is K's static shared memory, with what the system reserves where a section
// .nv.shared.reserved.0 says that it does (sm_90 and later).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "runtime/elf.hpp"

namespace flashjit::test {

struct CubinFigures {
  int registers = 0;     // per thread
  int barriers = 0;      // named barriers, barrier 0 included
  int shared_bytes = 0;  // static
  int stack = 0;         // bytes per thread of the kernel's own frame
};

// The name of symbol `index` in the (first) symbol table.
inline std::string_view symbol_name(const runtime::Elf& elf, std::size_t index) {
  for (const Elf64_Shdr& section : elf.sections()) {
    if (section.sh_type != SHT_SYMTAB) continue;
    Elf64_Sym symbol{};
    const std::string_view table = elf.content(section);
    if (index > table.size() / sizeof(symbol) || !runtime::Elf::read(table, index * sizeof(symbol), symbol) ||
        section.sh_link >= elf.sections().size()) {
      return {};
    }
    return runtime::Elf::text_at(elf.content(elf.sections()[section.sh_link]), symbol.st_name);
  }
  return {};
}

// By kernel; empty where the bytes are no ELF file.
inline std::map<std::string, CubinFigures> figures_of(std::string_view cubin) {
  constexpr std::uint8_t kFormatSized = 0x04;    // EIFMT_SVAL: a 16-bit size, then the payload
  constexpr std::uint8_t kFrameSize = 0x11;      // EIATTR_FRAME_SIZE
  constexpr std::uint8_t kRegisterCount = 0x2f;  // EIATTR_REGCOUNT
  constexpr std::uint8_t kBarrierCount = 0x4c;   // EIATTR_NUM_BARRIERS
  constexpr int kReservedShared = 1024;
  constexpr std::string_view kInfo = ".nv.info", kText = ".text.", kShared = ".nv.shared.";

  std::map<std::string, CubinFigures> kernels;
  runtime::Elf elf(cubin);
  if (!elf.parse()) return kernels;
  int reserved = 0;
  for (const Elf64_Shdr& section : elf.sections()) {
    const std::string_view name = elf.name(section);
    if (name == ".nv.shared.reserved.0") reserved = kReservedShared;
    if (section.sh_type == SHT_PROGBITS && name.starts_with(kText))
      kernels[std::string(name.substr(kText.size()))].barriers =
          static_cast<int>(section.sh_flags >> 20 & 0x7f);
  }
  const auto find = [&](std::string_view name) {
    const auto found = kernels.find(std::string(name));
    return found == kernels.end() ? nullptr : &found->second;
  };
  for (const Elf64_Shdr& section : elf.sections()) {
    const std::string_view name = elf.name(section);
    if (name.starts_with(kShared)) {
      if (CubinFigures* kernel = find(name.substr(kShared.size())))
        kernel->shared_bytes = std::max(0, static_cast<int>(section.sh_size) - reserved);
    }
    if (!name.starts_with(kInfo)) continue;
    CubinFigures* const owner = find(name.substr(std::min(name.size(), kInfo.size() + 1)));
    const std::string_view info = elf.content(section);
    std::size_t at = 0;
    std::uint8_t format = 0, attribute = 0;
    std::uint16_t size = 0;  // of the payload, where the format has one; else the value itself
    while (runtime::Elf::read(info, at, format) && runtime::Elf::read(info, at + 1, attribute) &&
           runtime::Elf::read(info, at + 2, size)) {
      at += 4;
      if (format != kFormatSized) {
        if (attribute == kBarrierCount && owner != nullptr) owner->barriers = size;
        continue;
      }
      std::uint32_t symbol = 0, value = 0;
      if ((attribute == kFrameSize || attribute == kRegisterCount) && size >= 8 &&
          runtime::Elf::read(info, at, symbol) && runtime::Elf::read(info, at + 4, value)) {
        if (CubinFigures* kernel = find(symbol_name(elf, symbol)))
          (attribute == kFrameSize ? kernel->stack : kernel->registers) = static_cast<int>(value & 0xffffff);
      }
      at += size;
    }
  }
  return kernels;
}

}  // namespace flashjit::test
