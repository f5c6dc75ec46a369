// Writes a file whole or not at all.
#include "cli/common/write_file.hpp"

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace flashjit::cli {

int write_file(const std::filesystem::path& path, std::initializer_list<std::string_view> parts) {
  errno = 0;
  const auto reason = [] { return errno == 0 ? EIO : errno; };  // not all that fails says why
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return reason();
  int error = 0;
  for (const std::string_view part : parts) {
    if (error == 0 && std::fwrite(part.data(), 1, part.size(), file) != part.size()) error = reason();
  }
  // A full disk may fail only when the last buffer is written.
  if (std::fclose(file) != 0 && error == 0) error = reason();
  std::error_code ignored;  // the first error is the one to report
  if (error != 0 && std::filesystem::is_regular_file(path, ignored)) std::filesystem::remove(path, ignored);
  return error;
}

}  // namespace flashjit::cli
