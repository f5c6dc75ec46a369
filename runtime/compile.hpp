// NVRTC: from a KernelSource to PTX, cubin, log and what ptxas reported.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flashjit/target.hpp"
#include "generator/render.hpp"

namespace flashjit::runtime {

// What ptxas said of the kernel.
struct Resources {
  int registers = 0;
  int spill_stores = 0;  // bytes
  int spill_loads = 0;   // bytes
  int stack = 0;         // bytes
  int shared_bytes = 0;  // static
  int barriers = 0;
  int code_bytes = 0;                 // of .text in the cubin
  std::vector<std::string> warnings;  // C7510 "wgmma serialized", ignored setmaxnreg …: ptxas's own words
};

struct Compiled {
  std::string ptx;
  std::string cubin;
  std::string log;
  Resources resources;
  double milliseconds = 0;
};

// An NVRTC that was found and loaded; loaded once per process and path, never unloaded before exit.
class Compiler {
 public:
  virtual ~Compiler() = default;
  [[nodiscard]] virtual std::string path() const = 0;      // of the library
  [[nodiscard]] virtual std::string build_id() const = 0;  // exact: "CL-36424714 V13.0.88"; part of the cache key
  [[nodiscard]] virtual std::vector<std::string> archs() const = 0;
  // The options that shape the code, in canonical order; part of the cache key.
  [[nodiscard]] virtual std::vector<std::string> options(const Target& target) const = 0;
  // Throws Error{compile_failed} with stage, entry, the log with source lines around each message, and a dumped source;
  // ErrorCode::compile_failed and "deadline" when it takes longer than `deadline` (0: no limit). Safe from many threads.
  virtual Compiled compile(const KernelSource& source, const Target& target, std::chrono::milliseconds deadline) = 0;
};

// Searches FLASHJIT_NVRTC, the toolkit, the loader's path, Python's nvidia-cuda-nvrtc wheel. Throws Error{not_found}
// that lists where it looked and both ways to get it.
std::shared_ptr<Compiler> load_nvrtc();

}  // namespace flashjit::runtime
