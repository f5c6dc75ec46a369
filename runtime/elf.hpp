// The sections of a 64-bit little-endian ELF file in memory, such as a cubin. Never reads past its end.
#pragma once

#include <elf.h>

#include <cstddef>
#include <cstring>
#include <string_view>
#include <vector>

namespace flashjit::runtime {

class Elf {
 public:
  explicit Elf(std::string_view bytes) : bytes_(bytes) {}

  // Reads the headers; false unless every section lies within the bytes.
  bool parse();

  [[nodiscard]] const std::vector<Elf64_Shdr>& sections() const { return sections_; }
  [[nodiscard]] std::string_view name(const Elf64_Shdr& section) const {
    return text_at(names_, section.sh_name);
  }
  [[nodiscard]] std::string_view content(const Elf64_Shdr& section) const {
    return section.sh_type == SHT_NOBITS ? std::string_view{}
                                         : bytes_.substr(section.sh_offset, section.sh_size);
  }

  // False if `from` ends before the value does.
  template <class T>
  static bool read(std::string_view from, std::size_t offset, T& value) {
    if (offset > from.size() || from.size() - offset < sizeof(T)) return false;
    std::memcpy(&value, from.data() + offset, sizeof(T));
    return true;
  }
  // A zero-terminated text in a string table.
  static std::string_view text_at(std::string_view table, std::size_t offset);

 private:
  std::string_view bytes_;
  std::string_view names_;
  std::vector<Elf64_Shdr> sections_;
};

}  // namespace flashjit::runtime
