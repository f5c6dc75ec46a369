// What a cubin says of its kernels, read from its ELF sections: no toolkit and no driver needed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flashjit::runtime {

struct CubinKernel {
  std::string name;
  int registers = 0;     // per thread
  int barriers = 0;      // named barriers, barrier 0 included
  int shared_bytes = 0;  // static
  int stack = 0;         // bytes per thread of the kernel's own frame
  int code_bytes = 0;
};

// nullopt when the bytes are no well-formed 64-bit ELF file; never reads beyond them.
std::optional<std::vector<CubinKernel>> read_cubin(std::string_view bytes);

}  // namespace flashjit::runtime
