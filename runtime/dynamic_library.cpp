// dlopen, and the ELF note that identifies a library's build.
#include "runtime/dynamic_library.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string_view>

namespace flashjit::runtime {
namespace {

// Reads a T at `offset`; false if the bytes end before it does.
template <class T>
bool read_at(std::string_view bytes, std::size_t offset, T& value) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return false;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return true;
}

constexpr std::size_t kMost = std::size_t{64} * 1024;  // no library has more bytes of headers, or of notes

// The bytes from `offset` on; fewer if the file ends.
std::string bytes_at(std::ifstream& file, std::uint64_t offset, std::size_t size) {
  std::string bytes(size, '\0');
  file.clear();
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  bytes.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return bytes;
}

// The GNU build id among the notes of one segment, in hex; empty if there is none.
std::string build_id_in(std::string_view notes, std::size_t align) {
  const auto padded = [align](std::size_t size) { return (size + align - 1) / align * align; };
  Elf64_Nhdr note{};
  for (std::size_t at = 0; read_at(notes, at, note);) {
    const std::size_t name_at = at + sizeof(note);
    const std::size_t id_at = name_at + padded(note.n_namesz);
    if (id_at > notes.size() || note.n_descsz > notes.size() - id_at) return {};
    if (note.n_type == NT_GNU_BUILD_ID &&
        notes.compare(name_at, note.n_namesz, std::string_view("GNU\0", 4)) == 0) {
      std::string id;
      for (std::size_t byte = 0; byte < note.n_descsz; ++byte)
        id += fmt::format("{:02x}", static_cast<unsigned char>(notes[id_at + byte]));
      return id;
    }
    at = id_at + padded(note.n_descsz);
  }
  return {};
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
  std::ifstream file(library, std::ios::binary);
  const std::string head = bytes_at(file, 0, kMost);  // the program headers come right after the ELF header
  Elf64_Ehdr header{};
  if (!read_at(head, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64) {
    return {};
  }
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    if (!read_at(head, header.e_phoff + i * sizeof(segment), segment)) return {};
    if (segment.p_type != PT_NOTE) continue;
    // The notes come after the headers in NVRTC 13.0, and at the end of the file in 12.9 and 13.2.
    const std::string notes =
        bytes_at(file, segment.p_offset, std::min<std::size_t>(segment.p_filesz, kMost));
    if (std::string id = build_id_in(notes, segment.p_align == 8 ? 8 : 4); !id.empty()) return id;
  }
  return {};
}

}  // namespace flashjit::runtime
