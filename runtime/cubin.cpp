// In the cubins of NVRTC 12 and 13, the code of kernel K is section .text.K on all archs.
#include "runtime/cubin.hpp"

#include <algorithm>
#include <cstdint>

#include "runtime/elf.hpp"

namespace flashjit::runtime {

std::optional<std::vector<CubinKernel>> read_cubin(std::string_view bytes) {
  constexpr std::string_view kText = ".text.";
  Elf elf(bytes);
  if (!elf.parse()) return std::nullopt;
  std::vector<CubinKernel> kernels;
  for (const Elf64_Shdr& section : elf.sections()) {
    const std::string_view name = elf.name(section);
    if (section.sh_type != SHT_PROGBITS || !name.starts_with(kText)) continue;
    kernels.push_back({.name = std::string(name.substr(kText.size())),
                       .code_bytes = static_cast<int>(std::min<std::uint64_t>(section.sh_size, INT32_MAX))});
  }
  return kernels;
}

}  // namespace flashjit::runtime
