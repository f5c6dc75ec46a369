#include "runtime/nvrtc/build_id.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <string_view>

#include "runtime/dynamic_library.hpp"

namespace flashjit::runtime {

std::string build_id_in(const std::string& ptx, const std::string& path, const NvrtcLibrary& nvrtc) {
  const auto word_after = [&ptx](std::string_view mark) {
    const std::size_t at = ptx.find(mark);
    if (at == std::string::npos) return std::string("?");
    const std::size_t start = at + mark.size();
    return ptx.substr(start, ptx.find_first_of(" ,\r\n", start) - start);
  };
  std::string build = word_after("Compiler Build ID: ");
  if (build == "UNKNOWN") build = gnu_build_id(path);  // as in 13.2
  const std::size_t release = ptx.find("release ");
  const std::size_t comma = release == std::string::npos ? release : ptx.find(", ", release);
  const std::size_t version = comma == std::string::npos ? comma : comma + 2;
  return fmt::format("{} {}", build,
                     version == std::string::npos
                         ? fmt::format("{}.{}", nvrtc.version / 100, nvrtc.version % 100)
                         : ptx.substr(version, ptx.find_first_of(" \r\n", version) - version));
}

}  // namespace flashjit::runtime
