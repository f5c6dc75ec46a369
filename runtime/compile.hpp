// NVRTC: from a KernelSource to PTX, cubin, log and what ptxas reported.
#pragma once

#include <atomic>
#include <chrono>
#include <compare>
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
  std::string cubin;  // empty where the NVRTC is older than the target: the driver must finish the PTX
  std::string log;
  Resources resources;
  std::string build_id;  // of the NVRTC that made it, as Compiler::build_id() says it
  double milliseconds = 0;
};

// An NVRTC that was found. It is loaded on first need: path, stamp and options cost a few stat calls, the
// rest dlopen. Loaded libraries stay until the process ends.
class Compiler {
 public:
  virtual ~Compiler() = default;
  [[nodiscard]] virtual std::string path() const = 0;  // of the library
  // Exact, for people: "CL-36424714 V13.0.88". NVRTC says it by compiling an empty file, 30 to 60 ms.
  [[nodiscard]] virtual std::string build_id() const = 0;
  // The CUDA release it belongs to, as NVRTC says it: 1300 for 13.0; 0: not known. Loads it.
  [[nodiscard]] virtual int version() const { return 0; }
  // Names the bytes of the library (its GNU build id), without loading it: equal stamps have equal build ids,
  // archs and code. Empty where the library has none.
  [[nodiscard]] virtual std::string stamp() const { return {}; }
  [[nodiscard]] virtual std::vector<std::string> archs() const = 0;
  // Does it make machine code for the target? If not, compile() makes PTX alone, for the highest arch that it
  // knows.
  [[nodiscard]] virtual bool makes_cubin(const Target&) const { return true; }
  // The options that shape the code, in canonical order; part of the cache key.
  [[nodiscard]] virtual std::vector<std::string> options(const Target& target) const = 0;
  // Throws Error{compile_failed} with stage, entry, the log with source lines around each message, and a
  // dumped source; the stage is "deadline" when it takes longer than `deadline` (0: no limit), "cancelled"
  // once *cancelled is true. An NVRTC before 12.8 can't be stopped and ends late. Safe from many threads.
  virtual Compiled compile(const KernelSource& source, const Target& target,
                           std::chrono::milliseconds deadline,
                           const std::atomic<bool>* cancelled = nullptr) = 0;
};

// What to make of a source besides its code. The machine code is the same either way.
struct CompilerUse {
  bool line_info = false;  // PTX and cubin say which source line an instruction is from; four times the size
  bool ptx_only = false;   // no cubin: in about half the time, for tests that emulate it
  auto operator<=>(const CompilerUse&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 errs
};

// Searches FLASHJIT_NVRTC, the toolkit, the loader's path, Python's nvidia-cuda-nvrtc wheel. Throws
// Error{not_found} that lists where it looked and both ways to get it. One Compiler per library, use and
// process.
std::shared_ptr<Compiler> load_nvrtc();
std::shared_ptr<Compiler> load_nvrtc_for(const CompilerUse& use);

// NVRTC_APPEND_FLAGS as it is now, part of the cache key too: every compile reads it (13.0.88 then ignores
// it).
std::string nvrtc_append_flags();

}  // namespace flashjit::runtime
