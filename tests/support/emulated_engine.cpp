#include "tests/support/emulated_engine.hpp"

#include <memory>
#include <string_view>
#include <utility>

#include "api/engine_state.hpp"
#include "runtime/compile.hpp"

namespace flashjit::test {

EmulatedEngine open_emulated_engine(const emulator::EmulatorOptions& options) {
  const EngineOptions engine{.device = "emulated:" + options.arch, .use_cache = false};
  auto device = emulator::open_emulated_device(options);
  emulator::EmulatedDevice* const reached = device.get();
  EngineState::Parts parts = EngineState::parts_from_environment(engine, [](std::string_view) {});
  parts.device = std::move(device);
  parts.load_compiler = [] { return runtime::load_nvrtc_for({.ptx_only = true}); };
  return {.engine = EngineAccess::make(std::make_shared<EngineState>(engine, std::move(parts))),
          .device = reached};
}

Engine& emulated_sm_90a() {
  static EmulatedEngine opened = open_emulated_engine({.arch = "sm_90a"});
  return opened.engine;
}

}  // namespace flashjit::test
