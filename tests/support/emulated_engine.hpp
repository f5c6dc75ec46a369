// An Engine on an emulated GPU, for tests that run kernels.
#pragma once

#include "emulator/emulated_device.hpp"
#include "flashjit/flashjit.hpp"

namespace flashjit::test {

struct EmulatedEngine {
  Engine engine;
  emulator::EmulatedDevice* device;  // the engine's
};

// Without a cache, since what is tested is what this build renders and this NVRTC compiles; and without
// machine code, for which the emulator has no use and which takes NVRTC half of its time (compile_test has it
// made).
EmulatedEngine open_emulated_engine(const emulator::EmulatorOptions& options);

// One for all cases of a test that need no other.
Engine& emulated_sm_90a();

}  // namespace flashjit::test
