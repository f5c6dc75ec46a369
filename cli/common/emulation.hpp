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

}  // namespace flashjit::cli
