// An Engine on the emulator, with its device: `check` and `profile` set the seed and read the results.
#pragma once

#include "cli/common/options.hpp"
#include "emulator/emulated_device.hpp"
#include "flashjit/engine.hpp"

namespace flashjit::cli {

struct Emulation {
  Engine engine;
  emulator::EmulatedDevice* device;  // lives as long as the engine
};

// Makes an Engine on the emulator of the options' target (DeviceOptions::target). A long launch shows a
// progress bar on stderr, if that is a terminal.
Emulation emulate(const DeviceOptions& options, emulator::EmulatorOptions how, bool use_cache);

// Returns `options`. If neither they nor the sizes ask for anything, adds the schedule that the problem gets
// at sizes that keep a GPU busy, since few tiles would get a kernel that nobody runs.
PlanOptions as_on_a_gpu(Engine& engine, const Problem& problem, const ShapeOptions& sizes,
                        PlanOptions options);

}  // namespace flashjit::cli
