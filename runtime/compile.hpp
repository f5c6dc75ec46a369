// NVRTC: from a KernelSource to PTX, cubin, log and the resources that ptxas reported.
#pragma once

#include <atomic>
#include <chrono>
#include <compare>
#include <memory>
#include <string>
#include <vector>

#include "flashjit/target.hpp"
#include "generator/render.hpp"

namespace flashjit::runtime {

// What ptxas said about the kernel.
struct Resources {
  int registers = 0;
  int spill_stores = 0;  // bytes
  int spill_loads = 0;   // bytes
  int stack = 0;         // bytes
  int shared_bytes = 0;  // static
  int barriers = 0;
  int code_bytes = 0;                 // of .text in the cubin
  std::vector<std::string> warnings;  // in ptxas's own words: C7510 "wgmma serialized", ignored setmaxnreg …
};

struct Compiled {
  std::string ptx;
  std::string cubin;  // empty if this NVRTC is older than the target: the driver must then compile the PTX
  std::string log;
  Resources resources;
  std::string build_id;  // of the NVRTC that compiled it, as from Compiler::build_id()
  double milliseconds = 0;
};

// An NVRTC that was found, and is loaded when it is first needed: path, stamp and options cost a few stat
// calls, the rest need dlopen. A loaded library stays until the process ends.
class Compiler {
 public:
  virtual ~Compiler() = default;
  [[nodiscard]] virtual std::string path() const = 0;  // of the library
  // The exact build, for people: "CL-36424714 V13.0.88". To find it, NVRTC compiles an empty file, which
  // takes 30 to 60 ms.
  [[nodiscard]] virtual std::string build_id() const = 0;
  // The CUDA release of the library, from NVRTC itself: 1300 for 13.0; 0: not known. Loads the library.
  [[nodiscard]] virtual int version() const { return 0; }
  // Identifies the bytes of the library (its GNU build id) without loading it: libraries with equal stamps
  // have equal build ids, archs and code. Empty if the library has no build id.
  [[nodiscard]] virtual std::string stamp() const { return {}; }
  [[nodiscard]] virtual std::vector<std::string> archs() const = 0;
  // Whether NVRTC makes machine code for the target. If not, compile() only makes PTX, for the highest arch
  // that NVRTC knows.
  [[nodiscard]] virtual bool makes_cubin(const Target&) const { return true; }
  // The options that affect the code, in canonical order; part of the cache key.
  [[nodiscard]] virtual std::vector<std::string> options(const Target& target) const = 0;
  // Throws Error{compile_failed} with the stage, the entry, the log with source lines around each message,
  // and the path of a dumped source. The stage is "deadline" if the compile takes longer than `deadline` (0:
  // no limit), and "cancelled" once *cancelled is true. An NVRTC before 12.8 can't be stopped, so it ends
  // late. May be called from many threads.
  virtual Compiled compile(const KernelSource& source, const Target& target,
                           std::chrono::milliseconds deadline,
                           const std::atomic<bool>* cancelled = nullptr) = 0;
};

// What to make of a source besides its code. The machine code does not depend on this.
struct CompilerUse {
  bool line_info = false;  // PTX and cubin give the source line of each instruction; four times the size
  bool ptx_only = false;   // no cubin: takes about half the time, for tests that emulate the PTX
  auto operator<=>(const CompilerUse&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 errs
};

// Searches FLASHJIT_NVRTC, the toolkit, the loader's path, and Python's nvidia-cuda-nvrtc wheel. Throws
// Error{not_found} that lists where it looked and both ways to get NVRTC. There is one Compiler per library,
// use and process.
std::shared_ptr<Compiler> load_nvrtc();
std::shared_ptr<Compiler> load_nvrtc_for(const CompilerUse& use);

// NVRTC_APPEND_FLAGS as it is now. Every compile reads it (13.0.88 then ignores it), so it is part of the
// cache key.
std::string nvrtc_append_flags();

}  // namespace flashjit::runtime
