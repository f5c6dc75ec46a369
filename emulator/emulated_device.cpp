#include "emulator/emulated_device.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "emulator/decode/decode.hpp"
#include "emulator/decode/opcodes.hpp"
#include "emulator/machine/machine.hpp"
#include "emulator/machine/tensor_map.hpp"
#include "emulator/ptx/parser.hpp"
#include "flashjit/error.hpp"

namespace flashjit::emulator {
namespace {

class LoadedKernel : public runtime::Kernel {
 public:
  LoadedKernel(Program made, const runtime::KernelImage& image) : program(std::move(made)) {
    for (const LineOrigin& origin : image.origins) {
      files.push_back(std::make_unique<std::string>(origin.file));
      origins.push_back({*files.back(), origin.line});
      texts.push_back(origin.file.empty() ? std::string()
                                          : fmt::format("templates/{}:{}", origin.file, origin.line));
    }
  }

  Program program;
  std::vector<LineOrigin> origins;
  std::vector<std::string> texts;  // "templates/parts/mma/mask.cuh:12", by source line

 private:
  std::vector<std::unique_ptr<std::string>> files;  // the text that the origins refer to
};

const LoadedKernel& loaded(const runtime::Kernel& kernel) {
  const auto* found = dynamic_cast<const LoadedKernel*>(&kernel);
  if (found == nullptr)
    throw Error(ErrorCode::invalid_argument, "kernel was loaded by another device, not by the emulator");
  return *found;
}

class Device final : public EmulatedDevice {
 public:
  explicit Device(const EmulatorOptions& options) : options_(options), target_(target_of(options.arch)) {
    if (options_.threads == 0) options_.threads = std::max(1u, std::thread::hardware_concurrency());
    if (options_.sm_count < 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("sm_count is {}, may be 0 or more", options_.sm_count));
    if (options_.sm_count > 0) target_.sm_count = options_.sm_count;
  }

  const Target& target() const override { return target_; }
  std::string name() const override { return fmt::format("emulated:{}", target_.arch); }
  std::string description() const override {
    return fmt::format("emulator of {}, {} threads{}", target_.arch, options_.threads,
                       using_avx2() ? "" : ", no AVX2");
  }
  bool estimates_time() const override { return true; }

  std::unique_ptr<runtime::Kernel> load(const runtime::KernelImage& image) override {
    if (image.ptx.empty()) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("the image of \"{}\" has no PTX; the emulator cannot run a cubin", image.entry));
    }
    Module module = parse_ptx(std::string(image.ptx));
    check_target(module);
    Program program = decode(std::move(module), image.entry, {.checked = options_.checks != Checks::off});
    return std::make_unique<LoadedKernel>(std::move(program), image);
  }

  int occupancy(const runtime::Kernel& kernel, int threads, int shared_bytes) override {
    const Program& program = loaded(kernel).program;
    if (threads <= 0 || threads > 1024)
      throw Error(ErrorCode::invalid_argument, fmt::format("threads is {}, may be 1 to 1024", threads));
    const int shared = shared_bytes + static_cast<int>(program.static_shared) + target_.shared_reserved;
    const int by_threads = target_.threads_per_sm / ((threads + kLanes - 1) / kLanes * kLanes);
    const int by_shared = shared > 0 ? target_.shared_per_sm / shared : target_.ctas_per_sm;
    return std::max(0, std::min({target_.ctas_per_sm, by_threads, by_shared}));
  }

  void launch(const runtime::Kernel& kernel, const runtime::Launch& launch, std::span<void* const> params,
              runtime::Stream) override {
    const std::uint32_t grid[3] = {launch.grid, 1, 1};
    const std::uint32_t block[3] = {launch.threads, 1, 1};
    run(kernel, {grid, block, launch.shared_bytes, launch.cluster, launch.cooperative}, params);
  }

  void launch_grid(const runtime::Kernel& kernel, const std::uint32_t (&grid)[3],
                   const std::uint32_t (&block)[3], std::uint32_t shared_bytes, std::uint32_t cluster,
                   std::span<void* const> params) override {
    run(kernel, {grid, block, shared_bytes, cluster, false}, params);
  }

  struct WholeGrid {
    const std::uint32_t (&grid)[3];
    const std::uint32_t (&block)[3];
    std::uint32_t shared_bytes;
    std::uint32_t cluster;
    bool cooperative;
  };

  void run(const runtime::Kernel& kernel, const WholeGrid& launch, std::span<void* const> params) {
    std::lock_guard lock(mutex_);
    const LoadedKernel& which = loaded(kernel);
    const Program& program = which.program;
    check_launch(program, launch);
    if (launch.cooperative) check_room(kernel, launch);
    const std::vector<std::byte> values = gather(program, params);

    Report report(program, which.origins, options_.seed);
    LaunchContext context;
    context.program = &program;
    context.memory = &memory_;
    context.report = &report;
    std::copy_n(launch.grid, 3, context.grid);
    std::copy_n(launch.block, 3, context.block);
    context.cluster = launch.cluster;
    context.shared_bytes = launch.shared_bytes;
    context.params = values.data();
    context.seed = options_.seed;
    // A kernel that was loaded without checks also runs without them.
    context.checks = program.checked ? options_.checks : Checks::off;
    context.counts = options_.counts;
    context.most_steps = options_.most_steps;
    context.sm_count = static_cast<u32>(std::max(1, target_.sm_count));
    Counters counters;
    counters.resize(program.code.size());
    const u32 threads = launch.cooperative ? launch.grid[0] / launch.cluster : options_.threads;
    run_launch(context, threads, &counters, options_.on_progress);
    if (options_.counts) accumulate(profile_, {&program, &counters, which.texts});
    findings_ = report.findings();
    if (!findings_.empty()) fail(program);
  }

  // A launch holds the lock, since it looks up allocations all the time.
  void* allocate(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    return memory_.allocate(bytes);
  }
  bool release(void* pointer) override {
    const std::lock_guard lock(mutex_);
    try {
      memory_.free(pointer);
      return true;
    } catch (const Error&) {  // not an allocation, or freed before
      return false;
    }
  }
  void* allocate_ordered(std::size_t bytes, runtime::Stream) override { return allocate(bytes); }
  void free_ordered(void* pointer, runtime::Stream) override {
    const std::lock_guard lock(mutex_);
    memory_.free(pointer);
  }
  void copy_to_device(void* to, const void* from, std::size_t bytes, runtime::Stream) override {
    memory_.check_host(to, bytes, true, "to");
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, runtime::Stream) override {
    memory_.check_host(from, bytes, false, "from");
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
  void fill(void* to, std::uint8_t value, std::size_t bytes, runtime::Stream) override {
    memory_.check_host(to, bytes, true, "to");
    if (bytes != 0) std::memset(to, value, bytes);
  }
  void synchronize(runtime::Stream) override {}
  bool capturing(runtime::Stream) const override { return false; }
  runtime::TensorMap encode(const runtime::TensorMapRequest& request) override {
    return encode_tensor_map(request);
  }

  std::unique_ptr<runtime::Timer> make_timer() override {
    throw Error(ErrorCode::unsupported, "the emulator has no GPU's clock (see estimates_time)");
  }

  Profile profile() const override {
    std::lock_guard lock(mutex_);
    return profile_;
  }
  void clear_profile() override {
    std::lock_guard lock(mutex_);
    profile_ = {};
  }
  const std::vector<Finding>& findings() const override { return findings_; }
  void set_seed(std::uint64_t seed) override { options_.seed = seed; }
  void set_checks(Checks checks) override { options_.checks = checks; }

 private:
  // PTX runs on its own arch and on later ones, unless the target ends in a letter.
  void check_target(const Module& module) const {
    const std::string& arch = module.target;
    int number = 0;
    const char* const end = arch.data() + arch.size();
    const bool named = arch.starts_with("sm_");
    const char* const rest = named ? std::from_chars(arch.data() + 3, end, number).ptr : end;
    const bool fits = rest == end ? number <= target_.capability : arch == target_.arch;
    if (named && fits) return;
    throw Error(ErrorCode::unsupported,
                fmt::format("the PTX is for target \"{}\", this device emulates {}", arch, target_.arch));
  }
  void check_launch(const Program& program, const WholeGrid& launch) const {
    const auto& [grid, block, shared_bytes, cluster, _] = launch;
    auto refuse = [&](const std::string& what) {
      throw Error(ErrorCode::invalid_argument, fmt::format("launch of \"{}\": {}", program.entry, what));
    };
    const u64 threads = u64{block[0]} * block[1] * block[2];
    const u32 most = program.max_threads != 0 ? std::min(program.max_threads, 1024u) : 1024u;
    if (threads == 0 || threads > most)
      refuse(fmt::format("{} threads a CTA, may be 1 to {}", threads, most));
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0)
      refuse("a dimension of the grid is 0, must be at least 1");
    if (grid[0] > 0x7fffffffu || grid[1] > 65535 || grid[2] > 65535) {
      refuse(fmt::format("grid is {} x {} x {}, may be up to 2147483647 x 65535 x 65535", grid[0], grid[1],
                         grid[2]));
    }
    if (cluster == 0 || cluster > 16 || grid[0] % cluster != 0) {
      refuse(fmt::format("cluster is {}, may be 1 to 16 and must divide the grid's {}", cluster, grid[0]));
    }
    if (cluster > 1 && target_.capability < 90)
      refuse(fmt::format("cluster is {}, but {} has no clusters", cluster, target_.arch));
    const auto require = [&](const char* what, const std::array<u32, 3>& required,
                             const std::array<u32, 3>& given) {
      if (required[0] == 0 || required == given) return;
      refuse(fmt::format("{} is {}, the kernel requires {}", what, fmt::join(given, " x "),
                         fmt::join(required, " x ")));
    };
    require("block", program.required_block, {block[0], block[1], block[2]});
    require("cluster", program.required_cluster, {cluster, 1, 1});
    const u64 warps = (threads + kLanes - 1) / kLanes * cluster;
    if (program.checked && options_.checks == Checks::all && warps > kMaxAgents) {
      refuse(fmt::format("{} warps a cluster, races are looked for among up to {}; Checks::memory takes more",
                         warps, kMaxAgents));
    }
    const u64 shared = u64{shared_bytes} + program.dynamic_shared - kSharedBase;
    if (shared > static_cast<u64>(target_.shared_per_cta)) {
      refuse(
          fmt::format("{} bytes of shared memory, {} has {}", shared, target_.arch, target_.shared_per_cta));
    }
  }
  // Refuses a cooperative launch as the driver does.
  void check_room(const runtime::Kernel& kernel, const WholeGrid& launch) {
    const u32 threads = launch.block[0] * launch.block[1] * launch.block[2];
    const int each = occupancy(kernel, static_cast<int>(threads), static_cast<int>(launch.shared_bytes));
    const u64 ctas = u64{launch.grid[0]} * launch.grid[1] * launch.grid[2];
    const u64 room = u64{static_cast<u32>(std::max(1, target_.sm_count))} * static_cast<u32>(each);
    if (ctas <= room) return;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("launch of \"{}\": {} CTAs at once, {} multiprocessors have room for {}",
                            loaded(kernel).program.entry, ctas, target_.sm_count, room));
  }

  static std::vector<std::byte> gather(const Program& program, std::span<void* const> params) {
    if (params.size() != program.params.size()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("launch of \"{}\": {} parameters given, the kernel takes {}", program.entry,
                              params.size(), program.params.size()));
    }
    std::vector<std::byte> values(program.param_bytes + 64);
    for (std::size_t k = 0; k < params.size(); ++k) {
      if (params[k] == nullptr)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("launch of \"{}\": parameter {} is null", program.entry, k));
      std::memcpy(values.data() + program.params[k].offset, params[k], program.params[k].bytes);
    }
    return values;
  }

  [[noreturn]] void fail(const Program& program) const {
    const std::size_t bugs = findings_.size();
    std::string text = fmt::format("the emulator found {} {} in \"{}\" (seed {})", bugs,
                                   bugs == 1 ? "bug" : "bugs", program.entry, options_.seed);
    for (const Finding& found : findings_) text += fmt::format("\n{}", found.text());
    throw Error(ErrorCode::device, text,
                fmt::format("to see it again: seed {}, and one thread if CTAs work on the same memory",
                            options_.seed));
  }

  EmulatorOptions options_;
  Target target_;
  GlobalMemory memory_;
  mutable std::mutex mutex_;
  Profile profile_;
  std::vector<Finding> findings_;
};

}  // namespace

std::unique_ptr<EmulatedDevice> open_emulated_device(const EmulatorOptions& options) {
  return std::make_unique<Device>(options);
}

}  // namespace flashjit::emulator
