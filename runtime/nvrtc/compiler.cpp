// The Compiler behind load_nvrtc(): one NVRTC call from source to PTX and cubin.
#include <nvrtc.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

#include "flashjit/error.hpp"
#include "runtime/compile.hpp"
#include "runtime/cubin.hpp"
#include "runtime/dynamic_library.hpp"
#include "runtime/nvrtc/build_id.hpp"
#include "runtime/nvrtc/diagnostics.hpp"
#include "runtime/nvrtc/library.hpp"
#include "runtime/nvrtc/program.hpp"
#include "runtime/nvrtc/ptxas_log.hpp"
#include "runtime/nvrtc/search.hpp"

namespace flashjit::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kQuickSince = 1209;  // NVRTC's version from which on it has quick_options: 12.9

// What the flow callback checks. NVRTC calls it now and then, from any of its threads.
struct Limit {
  Clock::time_point end;
  bool timed;
  const std::atomic<bool>* cancelled;
  std::atomic<bool> stop{false};  // once true, NVRTC must always get the same answer
};

int flow_callback(void* payload, void*) {
  auto& limit = *static_cast<Limit*>(payload);
  if ((limit.timed && Clock::now() >= limit.end) || (limit.cancelled != nullptr && limit.cancelled->load())) {
    limit.stop = true;
  }
  return limit.stop ? 1 : 0;
}

// "sm_90a" → 90.
int number_of(const std::string& arch) {
  int number = 0;
  if (arch.rfind("sm_", 0) == 0) std::from_chars(arch.data() + 3, arch.data() + arch.size(), number);
  return number;
}

class NvrtcCompiler final : public Compiler {
 public:
  NvrtcCompiler(std::string path, const CompilerUse& use)
      : path_(std::move(path)), stamp_(gnu_build_id(path_)), use_(use) {
    if (stamp_.empty()) return;  // no build id means no stamp, for any use
    // Options are remembered by stamp, so each use needs a stamp of its own.
    if (use_.line_info) stamp_ += " with lines";
    if (use_.ptx_only) stamp_ += " PTX only";
  }

  [[nodiscard]] std::string path() const override { return path_; }
  [[nodiscard]] std::string stamp() const override { return stamp_; }

  [[nodiscard]] std::string build_id() const override {
    const std::lock_guard lock(build_id_mutex_);
    if (build_id_.empty()) build_id_ = ask_build_id();
    return build_id_;
  }

  [[nodiscard]] int version() const override { return loaded().nvrtc.version; }
  [[nodiscard]] std::vector<std::string> archs() const override {
    std::vector<std::string> names;
    for (const int number : loaded().numbers) {
      names.push_back(fmt::format("sm_{}", number));
      if (number == 90) names.emplace_back("sm_90a");
    }
    return names;
  }

  [[nodiscard]] bool makes_cubin(const Target& target) const override {
    return !use_.ptx_only && knows(target);
  }

  // The arch is the target's even if this NVRTC falls back to an older one: the build id implies which one.
  [[nodiscard]] std::vector<std::string> options(const Target& target) const override {
    std::vector<std::string> options = {"--gpu-architecture=" + target.arch, "--std=c++17",
                                        "--device-as-default-execution-space"};
    if (use_.ptx_only) options.front() = "--gpu-architecture=compute_" + target.arch.substr(3);
    if (use_.line_info) options.emplace_back("--generate-line-info");
    return options;
  }

  Compiled compile(const KernelSource& source, const Target& target, std::chrono::milliseconds deadline,
                   const std::atomic<bool>* cancelled) override;

 private:
  struct Loaded {
    explicit Loaded(const std::string& path);
    NvrtcLibrary nvrtc;
    std::vector<int> numbers;  // archs, ascending
  };

  const Loaded& loaded() const {
    const std::lock_guard lock(loaded_mutex_);
    if (!loaded_) loaded_.emplace(path_);
    return *loaded_;  // never changes again
  }
  [[nodiscard]] bool knows(const Target& target) const {
    const std::vector<int>& numbers = loaded().numbers;
    return std::find(numbers.begin(), numbers.end(), number_of(target.arch)) != numbers.end();
  }
  // Without NVRTC's own cache, and without what no kernel uses (textures, and the runtime's functions on the
  // device), which would cost 20 ms per compile.
  [[nodiscard]] std::vector<std::string> quick_options() const {
    if (loaded().nvrtc.version < kQuickSince) return {};
    return {"--minimal", "--no-cache"};
  }
  [[nodiscard]] std::string ask_build_id() const;
  [[nodiscard]] std::vector<std::string> actual_options(const KernelSource& source,
                                                        const Target& target) const;
  [[noreturn]] void fail(const std::string& stage, const std::string& problem, const KernelSource& source,
                         const Target& target, std::string_view log, std::string_view ptx);

  std::string path_;
  std::string stamp_;
  CompilerUse use_;
  mutable std::mutex loaded_mutex_;
  mutable std::optional<Loaded> loaded_;
  mutable std::mutex build_id_mutex_;
  mutable std::string build_id_;
  DumpDirectory dumps_;
};

NvrtcCompiler::Loaded::Loaded(const std::string& path) : nvrtc(path) {
  int count = 0;
  nvrtc.check(nvrtc.arch_count(&count), "nvrtcGetNumSupportedArchs");
  numbers.resize(static_cast<std::size_t>(count));
  nvrtc.check(nvrtc.archs(numbers.data()), "nvrtcGetSupportedArchs");
  std::sort(numbers.begin(), numbers.end());
}

std::string NvrtcCompiler::ask_build_id() const {
  const NvrtcLibrary& nvrtc = loaded().nvrtc;
  Program program(nvrtc, "", "build_id.cu");
  std::vector<std::string> options = quick_options();
  options.push_back(fmt::format("--gpu-architecture=compute_{}", loaded().numbers.back()));
  const nvrtcResult result = program.compile(options);
  if (result != NVRTC_SUCCESS) {
    const std::string log = text_of(program.fetch(nvrtc.log_size, nvrtc.log));
    if (log.find("libnvrtc-builtins") != std::string::npos ||
        result == NVRTC_ERROR_BUILTIN_OPERATION_FAILURE) {
      throw Error(
          ErrorCode::not_found, fmt::format("NVRTC at {} can't find its libnvrtc-builtins: {}", path_, log),
          "libnvrtc-builtins.so.N.M belongs beside libnvrtc and comes with the same toolkit or wheel");
    }
    const std::string flags = nvrtc_append_flags();
    throw Error(ErrorCode::compile_failed,
                fmt::format("NVRTC at {} can't compile an empty file: {}: {}", path_,
                            nvrtc.error_string(result), log),
                flags.empty() ? "" : "NVRTC_APPEND_FLAGS is \"" + flags + "\": try without");
  }
  return build_id_in(program.fetch(nvrtc.ptx_size, nvrtc.ptx), path_, nvrtc);
}

std::vector<std::string> NvrtcCompiler::actual_options(const KernelSource& source,
                                                       const Target& target) const {
  std::vector<std::string> options = this->options(target);
  if (!knows(target)) {
    const std::vector<int>& numbers = loaded().numbers;
    const auto above = std::upper_bound(numbers.begin(), numbers.end(), number_of(target.arch));
    if (above == numbers.begin()) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("NVRTC {} makes no code for {}: its oldest arch is sm_{}", build_id(),
                              target.arch, numbers.front()),
                  "an older NVRTC may: FLASHJIT_NVRTC names it");
    }
    options.front() = fmt::format("--gpu-architecture=compute_{}", *(above - 1));
  }
  // The default level is left out, here and in the cache key.
  if (source.ptxas != KernelSource{}.ptxas)
    options.push_back(fmt::format("--ptxas-options=-O{}", source.ptxas));
  // The options below do not change the code.
  const std::vector<std::string> quick = quick_options();
  options.insert(options.end(), quick.begin(), quick.end());
  options.emplace_back("--ptxas-options=-v");
  options.emplace_back("--ptxas-options=--warn-on-spills");
  return options;
}

Compiled NvrtcCompiler::compile(const KernelSource& source, const Target& target,
                                std::chrono::milliseconds deadline, const std::atomic<bool>* cancelled) {
  const NvrtcLibrary& nvrtc = loaded().nvrtc;
  const std::vector<std::string> options = actual_options(source, target);
  const Clock::time_point start = Clock::now();
  Limit limit{.end = start + deadline, .timed = deadline.count() > 0, .cancelled = cancelled};
  // Line info contains the program's path. NVRTC would prefix a relative path with the working directory.
  Program program(nvrtc, source.text, (use_.line_info ? "/" : "") + source.entry + ".cu");
  if (nvrtc.set_flow_callback != nullptr && (limit.timed || cancelled != nullptr)) {
    nvrtc.check(nvrtc.set_flow_callback(program.get(), flow_callback, &limit), "nvrtcSetFlowCallback");
  }
  const nvrtcResult result = program.compile(options);
  Compiled compiled;
  compiled.milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  compiled.log = text_of(program.fetch(nvrtc.log_size, nvrtc.log));
  compiled.ptx = text_of(program.fetch(nvrtc.ptx_size, nvrtc.ptx));
  if (limit.stop) {
    const bool by_caller = cancelled != nullptr && cancelled->load();
    fail(by_caller ? "cancelled" : "deadline",
         by_caller ? "the compile was cancelled"
                   : fmt::format("the compile took longer than its deadline of {} ms", deadline.count()),
         source, target, compiled.log, {});
  }
  if (result == NVRTC_ERROR_BUILTIN_OPERATION_FAILURE) {
    fail("builtins", "libnvrtc-builtins.so.N.M, which belongs beside libnvrtc, was not found or does not fit",
         source, target, compiled.log, {});
  }
  if (result != NVRTC_SUCCESS) {
    const bool in_ptxas = compiled.log.find("ptxas fatal") != std::string::npos ||
                          compiled.log.find("; error") != std::string::npos;
    fail(in_ptxas ? "ptxas" : "front end", nvrtc.error_string(result), source, target, compiled.log,
         in_ptxas ? compiled.ptx : std::string());
  }
  compiled.cubin = program.cubin();
  if (compiled.ptx.empty())
    throw Error(ErrorCode::internal, "NVRTC compiled " + source.entry + ", and gave no PTX");
  compiled.resources = parse_ptxas_log(compiled.log, source.entry);
  compiled.build_id = build_id_in(compiled.ptx, path_, nvrtc);
  if (!compiled.cubin.empty()) {
    const auto kernels = read_cubin(compiled.cubin);
    if (!kernels)
      throw Error(ErrorCode::internal, "NVRTC made a cubin for " + source.entry + " that is no ELF file");
    const auto kernel =
        std::find_if(kernels->begin(), kernels->end(),
                     [&source](const CubinKernel& candidate) { return candidate.name == source.entry; });
    if (kernel == kernels->end()) {
      throw Error(ErrorCode::internal,
                  fmt::format("the source of {} has no kernel of that name", source.entry),
                  "is it extern \"C\" and __global__?");
    }
    compiled.resources.code_bytes = kernel->code_bytes;
  }
  return compiled;
}

void NvrtcCompiler::fail(const std::string& stage, const std::string& problem, const KernelSource& source,
                         const Target& target, std::string_view log, std::string_view ptx) {
  const std::string flags = nvrtc_append_flags();
  const bool ended = stage == "cancelled" || stage == "deadline";  // then the source is not at fault
  const std::string dump = ended ? "not kept" : dumps_.write(source, log, ptx);
  throw Error(ErrorCode::compile_failed,
              fmt::format("compiling {} for {} failed in stage \"{}\": {}\n{}{}", source.entry, target.arch,
                          stage, problem, header_comment(source.text), annotate(log, source, ptx)),
              fmt::format("source: {}; NVRTC: {}{}", dump, path_,
                          flags.empty() ? "" : "; NVRTC_APPEND_FLAGS: " + flags));
}

}  // namespace

std::shared_ptr<Compiler> load_nvrtc_for(const CompilerUse& use) {
  // One Compiler per library and use, kept until the process ends: the library can't be unloaded safely, and
  // asking it again for its archs and build id would cost each new Engine what the first one paid. Never
  // destroyed, so that a thread that still plans at exit finds the Compiler intact. But NVRTC's own globals
  // are destroyed at exit, and a compile that is running then crashes; hence the rule in engine.hpp.
  static auto& mutex = *new std::mutex;
  static auto& compilers = *new std::map<std::pair<std::string, CompilerUse>, std::shared_ptr<NvrtcCompiler>>;
  const std::filesystem::path found = find_nvrtc(nvrtc_places());
  std::error_code error;
  const std::string path = std::filesystem::weakly_canonical(found, error).string();
  if (error) {
    throw Error(ErrorCode::io, fmt::format("NVRTC at {} can't be followed to its file: {}", found.string(),
                                           error.message()));
  }
  const std::lock_guard lock(mutex);
  std::shared_ptr<NvrtcCompiler>& compiler = compilers[{path, use}];
  if (!compiler) compiler = std::make_shared<NvrtcCompiler>(path, use);
  return compiler;
}

std::shared_ptr<Compiler> load_nvrtc() {
  return load_nvrtc_for({});
}

std::string nvrtc_append_flags() {
  const char* flags = std::getenv("NVRTC_APPEND_FLAGS");
  return flags != nullptr ? flags : "";
}

}  // namespace flashjit::runtime
