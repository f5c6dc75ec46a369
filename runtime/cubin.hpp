// The kernels of a cubin, read from its ELF sections: no toolkit and no driver needed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flashjit::runtime {

struct CubinKernel {
  std::string name;
  int code_bytes = 0;
};

// nullopt when the bytes are no well-formed 64-bit ELF file.
std::optional<std::vector<CubinKernel>> read_cubin(std::string_view bytes);

}  // namespace flashjit::runtime
