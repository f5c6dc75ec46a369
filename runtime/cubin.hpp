// The kernels of a cubin, read from its ELF sections without a toolkit or driver.
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

// nullopt if the bytes are not a well-formed 64-bit ELF file.
std::optional<std::vector<CubinKernel>> read_cubin(std::string_view bytes);

}  // namespace flashjit::runtime
