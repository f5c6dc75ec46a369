#include "runtime/elf.hpp"

#include <algorithm>

namespace flashjit::runtime {

bool Elf::parse() {
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

std::string_view Elf::text_at(std::string_view table, std::size_t offset) {
  if (offset >= table.size()) return {};
  const std::string_view rest = table.substr(offset);
  return rest.substr(0, std::min(rest.find('\0'), rest.size()));
}

}  // namespace flashjit::runtime
