// From Problem and Schedule to a plan's loaded kernels: render, look in the cache, compile if necessary,
// load.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/build/report.hpp"
#include "api/build/toolchain.hpp"
#include "cache/store.hpp"
#include "generator/render.hpp"
#include "runtime/device.hpp"

namespace flashjit::api {

using Message = std::function<void(std::string_view line)>;

// The slowest legal schedule compiles in some seconds, and may take a hundred times as long on a busy
// machine. A compile that takes longer means that NVRTC hangs.
inline constexpr std::chrono::milliseconds kCompileDeadline{300'000};

// A kernel's code, before it is loaded.
struct KernelCode {
  KernelSource source;
  std::shared_ptr<const cache::Entry> entry;
  std::string origin;  // "memory", "disk", "system", "compiled in 412 ms"
  bool compiled = false;
  Report report;
};

using KernelCodePointer = std::shared_ptr<const KernelCode>;

// The code of all of a plan's kernels, in launch order.
struct PlanCode {
  std::vector<KernelCodePointer> kernels;
  // Registers, stack, shared memory and barriers: the most of any kernel. Spills, code, warnings: of all.
  [[nodiscard]] runtime::Resources resources() const;
};

struct LoadedKernel {
  KernelCodePointer code;
  int ctas_per_sm = 1;
  int clusters_at_once = 1;                 // if several share a tile: how many fit on the GPU; a CTA is one
  std::unique_ptr<runtime::Kernel> kernel;  // last, so that it is unloaded first
};

struct LoadedPlan {
  Problem problem;
  Schedule schedule;
  std::vector<LoadedKernel> kernels;  // in launch order
  // Where the code came from, in the words of Origin::code: the slowest origin of all kernels.
  [[nodiscard]] const std::string& origin() const;
};

class KernelBuilder {
 public:
  // All arguments must outlive the builder and what it builds.
  KernelBuilder(runtime::Device& device, cache::Store& store, const TemplateSet& templates,
                LoadCompiler load_compiler);

  // Takes the code from the cache, or compiles it into the cache, all kernels at once. Many threads, and many
  // processes that share a cache, compile a kernel only once. Throws Error{compile_failed} if NVRTC takes
  // longer than `deadline`.
  PlanCode code(const Problem& problem, const Schedule& schedule,
                std::chrono::milliseconds deadline = kCompileDeadline);

  // If the device refuses an intact entry (ImageRefused), another toolchain's is taken if one may be used, or
  // else the entry is rebuilt once.
  std::shared_ptr<LoadedPlan> load(const Problem& problem, const Schedule& schedule, PlanCode code);

 private:
  [[nodiscard]] KernelCodePointer code_of(const Problem& problem, const Schedule& schedule,
                                          KernelSource source, std::chrono::milliseconds deadline);
  [[nodiscard]] LoadedKernel load_one(const Problem& problem, const Schedule& schedule,
                                      KernelCodePointer code);
  [[nodiscard]] cache::Key key_of(const KernelSource& source, const Toolchain& toolchain) const;
  [[nodiscard]] KernelCodePointer compile(const Problem& problem, const Schedule& schedule,
                                          KernelSource source, const cache::Key& key,
                                          std::chrono::milliseconds deadline);

  runtime::Device& device_;
  cache::Store& store_;
  const TemplateSet& templates_;
  ToolchainFinder toolchain_;
};

}  // namespace flashjit::api
