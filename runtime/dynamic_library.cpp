// dlopen, and the ELF note that names a library's build.
#include "runtime/dynamic_library.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <cstring>
#include <fstream>
#include <string_view>

namespace flashjit::runtime {
namespace {

// Reads a T at `offset`, or says no where the bytes end before it does.
template <class T>
bool read_at(std::string_view bytes, std::size_t offset, T& value) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return false;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return true;
}

}  // namespace

DynamicLibrary::DynamicLibrary(const std::string& name)
    : handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) {
    const char* reason = dlerror();
    error_ = reason != nullptr ? reason : "unknown reason";
  }
}

std::string DynamicLibrary::path() const {
  link_map* map = nullptr;
  if (handle_ == nullptr || dlinfo(handle_, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return {};
  return map->l_name;
}

void* DynamicLibrary::symbol(const char* name) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, name);
}

std::string gnu_build_id(const std::filesystem::path& library) {
  // The linker puts the note right behind the program headers: the first 64 KB hold it.
  std::ifstream file(library, std::ios::binary);
  std::string head(std::size_t{64} * 1024, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(file.gcount()));

  Elf64_Ehdr header{};
  if (!read_at(head, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64) {
    return {};
  }
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    if (!read_at(head, header.e_phoff + i * sizeof(segment), segment)) return {};
    if (segment.p_type != PT_NOTE) continue;
    const std::size_t align = segment.p_align == 8 ? 8 : 4;
    const auto padded = [align](std::size_t size) { return (size + align - 1) / align * align; };
    std::size_t at = segment.p_offset;
    while (at - segment.p_offset < segment.p_filesz) {
      Elf64_Nhdr note{};
      if (!read_at(head, at, note)) return {};
      const std::size_t name_at = at + sizeof(note);
      const std::size_t id_at = name_at + padded(note.n_namesz);
      if (id_at > head.size() || note.n_descsz > head.size() - id_at) return {};
      if (note.n_type == NT_GNU_BUILD_ID &&
          head.compare(name_at, note.n_namesz, std::string_view("GNU\0", 4)) == 0) {
        std::string id;
        for (std::size_t byte = 0; byte < note.n_descsz; ++byte) {
          id += fmt::format("{:02x}", static_cast<unsigned char>(head[id_at + byte]));
        }
        return id;
      }
      at = id_at + padded(note.n_descsz);
    }
  }
  return {};
}

}  // namespace flashjit::runtime
