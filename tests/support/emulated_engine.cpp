#include "tests/support/emulated_engine.hpp"

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "api/engine_state.hpp"
#include "runtime/compile.hpp"

namespace flashjit::test {
namespace {

Engine engine_with(std::unique_ptr<emulator::EmulatedDevice> device, const std::string& arch) {
  const EngineOptions options{.device = "emulated:" + arch, .use_cache = false};
  EngineState::Parts parts = EngineState::parts_from_environment(options, [](std::string_view) {});
  parts.device = std::move(device);
  parts.load_compiler = [] { return runtime::load_nvrtc_for({.ptx_only = true}); };
  return EngineAccess::make(std::make_shared<EngineState>(options, std::move(parts)));
}

}  // namespace

EmulatedEngine open_emulated_engine(const emulator::EmulatorOptions& options) {
  auto device = emulator::open_emulated_device(options);
  emulator::EmulatedDevice* const reached = device.get();
  return {.engine = engine_with(std::move(device), options.arch), .device = reached};
}

}  // namespace flashjit::test
