// From Problem and Schedule to the loaded kernels of a plan: render, look into the cache, compile if need be,
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

// The slowest legal schedule takes some seconds, and a hundred times that on a machine that is busy: more
// means that NVRTC hangs.
inline constexpr std::chrono::milliseconds kCompileDeadline{300'000};

// A kernel's code, before anything loads it.
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
  // The most registers, stack, shared memory and barriers of a kernel; the spills, code and warnings of all.
  [[nodiscard]] runtime::Resources resources() const;
};

struct LoadedKernel {
  KernelCodePointer code;
  int ctas_per_sm = 1;
  int clusters_at_once = 1;                 // where several may share a tile; a CTA counts as one
  std::unique_ptr<runtime::Kernel> kernel;  // last: unloaded first
};

struct LoadedPlan {
  Problem problem;
  Schedule schedule;
  std::vector<LoadedKernel> kernels;  // in launch order
  // Where its code came from, as Origin::code says it: the slowest of the kernels' ways.
  [[nodiscard]] const std::string& origin() const;
};

class KernelBuilder {
 public:
  // All of these outlive the builder and what it builds.
  KernelBuilder(runtime::Device& device, cache::Store& store, const TemplateSet& templates,
                LoadCompiler load_compiler);

  // Out of the cache, else compiled into it, all kernels at once. Many threads, and many processes on one
  // cache, compile a kernel once. Throws Error{compile_failed} when NVRTC takes longer than `deadline`.
  PlanCode code(const Problem& problem, const Schedule& schedule,
                std::chrono::milliseconds deadline = kCompileDeadline);

  // An entry that is whole but that the device refuses (ImageRefused) is rebuilt once.
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
