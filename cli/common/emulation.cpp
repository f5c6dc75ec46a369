// Engines on the emulator, and the bar that shows the progress of a launch.
#include "cli/common/emulation.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "api/engine_state.hpp"
#include "cli/common/tell.hpp"
#include "runtime/compile.hpp"

namespace flashjit::cli {
namespace {

// A line that is redrawn from the second second of a launch on, and erased at the end of the launch.
class ProgressBar {
 public:
  void operator()(std::uint64_t done, std::uint64_t of) {
    const auto now = std::chrono::steady_clock::now();
    if (done <= last_ || last_ == 0) began_ = now;  // this is a new launch
    last_ = done == of ? 0 : done;
    if (done == of) {
      if (drawn_) draw("\r\033[K");
      drawn_ = false;
    } else if (now - began_ > std::chrono::seconds(1) && now - shown_ > std::chrono::milliseconds(100)) {
      constexpr std::uint64_t kWidth = 40;
      const std::uint64_t filled = kWidth * done / of;
      draw(fmt::format("\r[{:#<{}}{:.<{}}] {} of {} CTAs", "", filled, "", kWidth - filled, done, of));
      shown_ = now;
      drawn_ = true;
    }
  }

 private:
  // Writes to a terminal, which may have hung up meanwhile, so errors are ignored.
  static void draw(const std::string& text) {
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
  }

  std::chrono::steady_clock::time_point began_, shown_;
  std::uint64_t last_ = 0;  // CTAs done at the last call; 0: between launches
  bool drawn_ = false;
};

}  // namespace

Emulation emulate(const DeviceOptions& options, emulator::EmulatorOptions how, bool use_cache) {
  how.arch = options.target().arch;
  if (isatty(STDERR_FILENO) == 1) {
    how.on_progress = [bar = std::make_shared<ProgressBar>()](std::uint64_t done, std::uint64_t of) {
      (*bar)(done, of);
    };
  }
  EngineOptions engine;
  engine.device = "emulated:" + how.arch;
  engine.use_cache = use_cache;
  engine.on_message = tell_message;
  EngineState::Parts parts = EngineState::parts_from_environment(engine, engine.on_message);
  std::unique_ptr<emulator::EmulatedDevice> device = emulator::open_emulated_device(how);
  emulator::EmulatedDevice* const reached = device.get();
  parts.device = std::move(device);
  parts.load_compiler = [] { return runtime::load_nvrtc_for({.line_info = true}); };
  return {.engine = EngineAccess::make(std::make_shared<EngineState>(engine, std::move(parts))),
          .device = reached};
}

PlanOptions as_on_a_gpu(Engine& engine, const Problem& problem, const ShapeOptions& sizes,
                        PlanOptions options) {
  const ShapeOptions none;  // the defaults for GPU and emulator differ in every size
  const bool sizes_given = sizes.shape(true) != none.shape(true) || sizes.shape(false) != none.shape(false);
  if (!options.schedule.empty() || !options.family.empty() || sizes_given) return options;
  options.schedule = engine.plan(problem, sizes.shape(false), options).origin().schedule;
  return options;
}

}  // namespace flashjit::cli
