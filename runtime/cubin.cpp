// A reader of the few ELF structures that a cubin's resource figures live in.
//
// What is where was read off cubins of NVRTC 13.0 for all its archs, beside what ptxas said of them
// (tests/runtime does so again): the code of kernel K is section .text.K. The sections .nv.info and
// .nv.info.K hold records of format, attribute and value or (size, payload); of these REGCOUNT and FRAME_SIZE
// pair a symbol with a number, NUM_BARRIERS stands in K's own (in NVRTC 12.9 the flags of .text.K say it).
// .nv.shared.K is K's static shared memory, with what the system reserves where a section
// .nv.shared.reserved.0 says that it does (sm_90 and later).
#include "runtime/cubin.hpp"

#include <elf.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace flashjit::runtime {
namespace {

constexpr std::uint8_t kFormatSized = 0x04;    // EIFMT_SVAL: a 16-bit size, then the payload
constexpr std::uint8_t kFrameSize = 0x11;      // EIATTR_FRAME_SIZE
constexpr std::uint8_t kRegisterCount = 0x2f;  // EIATTR_REGCOUNT
constexpr std::uint8_t kBarrierCount = 0x4c;   // EIATTR_NUM_BARRIERS
constexpr int kReservedShared = 1024;
constexpr std::string_view kInfo = ".nv.info";
constexpr std::string_view kText = ".text.";
constexpr std::string_view kShared = ".nv.shared.";

class Elf {
 public:
  explicit Elf(std::string_view bytes) : bytes_(bytes) {}

  // Reads the headers and checks that every section lies within the bytes.
  bool parse() {
    Elf64_Ehdr header{};
    if (!read(bytes_, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
        header.e_shentsize != sizeof(Elf64_Shdr)) {
      return false;
    }
    sections_.resize(header.e_shnum);
    for (std::size_t i = 0; i < sections_.size(); ++i) {
      if (header.e_shoff > bytes_.size() ||
          !read(bytes_, header.e_shoff + i * sizeof(Elf64_Shdr), sections_[i])) {
        return false;
      }
      const Elf64_Shdr& section = sections_[i];
      if (section.sh_type != SHT_NOBITS &&
          (section.sh_offset > bytes_.size() || section.sh_size > bytes_.size() - section.sh_offset)) {
        return false;
      }
    }
    if (header.e_shstrndx >= sections_.size()) return false;
    names_ = content(sections_[header.e_shstrndx]);
    return true;
  }

  [[nodiscard]] const std::vector<Elf64_Shdr>& sections() const { return sections_; }
  [[nodiscard]] std::string_view name(const Elf64_Shdr& section) const {
    return text_at(names_, section.sh_name);
  }
  [[nodiscard]] std::string_view content(const Elf64_Shdr& section) const {
    return section.sh_type == SHT_NOBITS ? std::string_view{}
                                         : bytes_.substr(section.sh_offset, section.sh_size);
  }

  // The name of symbol `index` in the (first) symbol table.
  [[nodiscard]] std::string_view symbol_name(std::size_t index) const {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_SYMTAB) continue;
      Elf64_Sym symbol{};
      const std::string_view table = content(section);
      if (index > table.size() / sizeof(symbol) || !read(table, index * sizeof(symbol), symbol) ||
          section.sh_link >= sections_.size()) {
        return {};
      }
      return text_at(content(sections_[section.sh_link]), symbol.st_name);
    }
    return {};
  }

  template <class T>
  static bool read(std::string_view from, std::size_t offset, T& value) {
    if (offset > from.size() || from.size() - offset < sizeof(T)) return false;
    std::memcpy(&value, from.data() + offset, sizeof(T));
    return true;
  }

 private:
  // A zero-terminated text in a string table.
  static std::string_view text_at(std::string_view table, std::size_t offset) {
    if (offset >= table.size()) return {};
    const std::string_view rest = table.substr(offset);
    return rest.substr(0, std::min(rest.find('\0'), rest.size()));
  }

  std::string_view bytes_;
  std::string_view names_;
  std::vector<Elf64_Shdr> sections_;
};

CubinKernel* find(std::vector<CubinKernel>& kernels, std::string_view name) {
  const auto found =
      std::find_if(kernels.begin(), kernels.end(), [name](const auto& k) { return k.name == name; });
  return found == kernels.end() ? nullptr : &*found;
}

// Walks the records of an .nv.info section; `owner` is the kernel that it belongs to, null for the common
// one. A record that does not fit ends the walk.
void read_info(const Elf& elf, std::string_view info, CubinKernel* owner, std::vector<CubinKernel>& kernels) {
  std::size_t at = 0;
  std::uint8_t format = 0;
  std::uint8_t attribute = 0;
  std::uint16_t size = 0;  // of the payload, where the format has one; else the value itself
  while (Elf::read(info, at, format) && Elf::read(info, at + 1, attribute) && Elf::read(info, at + 2, size)) {
    at += 4;
    if (format != kFormatSized) {
      if (attribute == kBarrierCount && owner != nullptr) owner->barriers = size;
      continue;
    }
    std::uint32_t symbol = 0;
    std::uint32_t value = 0;
    if ((attribute == kFrameSize || attribute == kRegisterCount) && size >= 8 &&
        Elf::read(info, at, symbol) && Elf::read(info, at + 4, value)) {
      if (CubinKernel* kernel = find(kernels, elf.symbol_name(symbol))) {
        (attribute == kFrameSize ? kernel->stack : kernel->registers) = static_cast<int>(value & 0xffffff);
      }
    }
    at += size;
  }
}

}  // namespace

std::optional<std::vector<CubinKernel>> read_cubin(std::string_view bytes) {
  Elf elf(bytes);
  if (!elf.parse()) return std::nullopt;
  std::vector<CubinKernel> kernels;
  int reserved = 0;
  for (const Elf64_Shdr& section : elf.sections()) {
    const std::string_view name = elf.name(section);
    if (name == ".nv.shared.reserved.0") reserved = kReservedShared;
    if (section.sh_type != SHT_PROGBITS || !name.starts_with(kText)) continue;
    CubinKernel kernel;
    kernel.name = name.substr(kText.size());
    kernel.code_bytes = static_cast<int>(std::min<std::uint64_t>(section.sh_size, INT32_MAX));
    kernel.barriers = static_cast<int>(section.sh_flags >> 20 & 0x7f);
    kernels.push_back(std::move(kernel));
  }
  for (const Elf64_Shdr& section : elf.sections()) {
    const std::string_view name = elf.name(section);
    if (name == kInfo) {
      read_info(elf, elf.content(section), nullptr, kernels);
    } else if (name.starts_with(kInfo)) {
      read_info(elf, elf.content(section),
                find(kernels, name.substr(std::min(name.size(), kInfo.size() + 1))), kernels);
    } else if (name.starts_with(kShared)) {
      if (CubinKernel* kernel = find(kernels, name.substr(kShared.size()))) {
        const int size = static_cast<int>(std::min<std::uint64_t>(section.sh_size, INT32_MAX));
        kernel->shared_bytes = std::max(0, size - reserved);
      }
    }
  }
  return kernels;
}

}  // namespace flashjit::runtime
