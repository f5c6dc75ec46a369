// An Engine on the emulator whose device stays in reach: `check` and `profile` set its seed and read what it
// saw.
#pragma once

#include "cli/common/options.hpp"
#include "emulator/emulated_device.hpp"
#include "flashjit/engine.hpp"

namespace flashjit::cli {

struct Emulation {
  Engine engine;
  emulator::EmulatedDevice* device;  // lives as long as the engine
};

// The emulator of the target that the options name (DeviceOptions::target). A launch that takes long shows a
// bar on stderr, if that is a terminal.
Emulation emulate(const DeviceOptions& options, emulator::EmulatorOptions how, bool use_cache);

// `options`; where neither they nor the sizes ask for anything, with the schedule that the problem gets at
// sizes which keep a GPU busy: what few tiles would get is a kernel that nobody runs.
PlanOptions as_on_a_gpu(Engine& engine, const Problem& problem, const ShapeOptions& sizes,
                        PlanOptions options);

}  // namespace flashjit::cli
